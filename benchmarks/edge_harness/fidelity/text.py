"""Real text for teacher forcing: fixed windows of the language reference that ships with CPython."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
from typing import Protocol

import torch

from vllm_omni.errors import OmniError

# One window per topic, so that windows are independent samples of text. The first ones in this order; further
# windows come from the other topics, in the order of their names.
TOPICS = ("execmodel", "import", "attribute-access", "debugger")
WINDOW_TOKENS = 640


class Tokenizer(Protocol):
    """The one method the windows need."""

    def encode(self, text: str) -> list[int]: ...


def token_windows(
    tokenizer: Tokenizer, count: int = len(TOPICS), tokens: int = WINDOW_TOKENS
) -> torch.Tensor:
    """The first ``tokens`` tokens of ``count`` topics: int64 ``[count, tokens]``.

    Topics that are too short are left out. Raises ``OmniError`` when too few remain.
    """
    windows: list[list[int]] = []
    for topic in (*TOPICS, *sorted(set(pydoc_data.topics.topics) - set(TOPICS))):
        if len(windows) == count:
            break
        ids = list(tokenizer.encode(pydoc_data.topics.topics[topic]))
        if len(ids) >= tokens:
            windows.append(ids[:tokens])
    if len(windows) < count:
        raise OmniError(
            f"--windows {count}: expected at most {len(windows)}: as many texts have {tokens} tokens or more"
        )
    return torch.tensor(windows, dtype=torch.int64)


def windows_sha256(windows: torch.Tensor) -> str:
    """Digest of the token ids."""
    return hashlib.sha256(windows.to(torch.int32).numpy().tobytes()).hexdigest()
