"""The proof that model and reference mean the same by a token id."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gguf
import torch

from vllm_omni.errors import FormatError, OmniError


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, as transformers reads it."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        raise OmniError(f"{folder}: expected a tokenizer: {first}") from error


def words_of(tokenizer: Any) -> list[str | None]:
    """Every token by its id; ``None`` where an id has none."""
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [None if word is None else str(word) for word in words]


def gguf_words(path: Path) -> list[str | None]:
    """The tokens that a GGUF file lists. Raises ``FormatError`` where it lists none."""
    field = gguf.GGUFReader(path).get_field("tokenizer.ggml.tokens")
    if field is None:
        raise FormatError(f"{path}: metadata key 'tokenizer.ggml.tokens' is missing")
    return [str(word) for word in field.contents()]


def require_same_words(model: Sequence[str | None], reference: Sequence[str | None], name: str) -> None:
    """Raise ``OmniError`` naming the first id that stands for another token in the reference.

    The order of merges and the pre-tokenizer are not compared: both sides are given the model's ids.
    """
    for token_id, (ours, theirs) in enumerate(zip_longest(model, reference)):
        if ours is not None and theirs is not None and ours != theirs:
            raise OmniError(
                f"--reference {name}: expected the model's vocabulary; token {token_id} is {ours!r} in the "
                f"model, {theirs!r} in the reference"
            )
    if not any(word is not None for word in reference):
        raise OmniError(f"--reference {name}: expected the model's vocabulary, found no token")


def require_same_tokens(model: torch.Tensor, reference: torch.Tensor, name: str) -> None:
    """Raise ``OmniError`` where the reference's tokenizer gives other ids for the same text."""
    different = (model != reference).nonzero()
    if not len(different):
        return
    window, position = different[0].tolist()
    raise OmniError(
        f"--reference {name}: expected the model's tokenizer; window {window}, token {position} is "
        f"{int(model[window, position])} in the model, {int(reference[window, position])} in the reference"
    )


def require_same_vocabulary(model: int, reference: int, name: str) -> None:
    """Raise ``OmniError`` where the heads have different numbers of words."""
    if model != reference:
        raise OmniError(
            f"--reference {name}: expected a head of {model} words as in the model, found {reference}"
        )
