"""The fixed text whose log-probability says that two arms compute the same model.

64 tokens of plain English by the model's own tokenizer: every arm of a grid that is the same model scores the
same ids. ``of`` is a digest of the ids, so arms with another tokenizer are never compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

TOKENS = 64

TEXT = (
    "The lighthouse stood at the end of a long stone pier, where the river met the sea. Every evening the "
    "keeper climbed the hundred and twelve steps, cleaned the lenses with a soft cloth and lit the lamp "
    "before the sun had gone down. On clear nights its beam was seen from ships that were thirty miles away. "
    "In the winter storms of that year the waves reached the gallery, and the sailors who came into the "
    "harbour said that they had steered by the light alone, because neither the coast nor the stars were "
    "visible."
)


def verification_ids(encode: Callable[[str], Sequence[int]]) -> list[int]:
    """The first 64 ids of the text; a tokenizer that makes fewer gets it repeated."""
    ids = list(encode(TEXT))
    if not ids:
        raise ValueError("the tokenizer makes no token of the verification text")
    while len(ids) < TOKENS:
        ids += ids
    return ids[:TOKENS]


def ids_digest(ids: Sequence[int]) -> str:
    """SHA-256 over the decimal ids, so that any language can repeat it."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
