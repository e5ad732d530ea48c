"""Real text for teacher forcing: fixed windows of the language reference that ships with CPython."""

from __future__ import annotations

import pydoc_data.topics
from typing import Protocol

import torch

# One window per topic, so that windows are independent samples of text. Long topics only: each must give
# a full window.
TOPICS = ("execmodel", "import", "attribute-access", "debugger")
WINDOW_TOKENS = 640


class Tokenizer(Protocol):
    """The one method the windows need."""

    def encode(self, text: str) -> list[int]: ...


def token_windows(tokenizer: Tokenizer) -> torch.Tensor:
    """The first WINDOW_TOKENS tokens of every topic.

    Returns int64 `[len(TOPICS), WINDOW_TOKENS]`; raises ValueError naming a topic that is too short.
    """
    windows = []
    for topic in TOPICS:
        tokens = list(tokenizer.encode(pydoc_data.topics.topics[topic]))
        if len(tokens) < WINDOW_TOKENS:
            raise ValueError(f"topic {topic!r}: expected at least {WINDOW_TOKENS} tokens, got {len(tokens)}")
        windows.append(tokens[:WINDOW_TOKENS])
    return torch.tensor(windows, dtype=torch.int64)
