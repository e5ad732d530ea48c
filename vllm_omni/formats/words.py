"""Small unsigned integers packed into int32 words, first value in the lowest bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Elements handled at a time: bounds the temporaries of a conversion to a few megabytes.
SLAB_ELEMENTS = 1 << 22


def per_word(bits: int) -> int:
    """Values in a 32-bit word: 8 of 4 bits, 4 of 8 bits."""
    return 32 // bits


def unpack_last(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 ``[..., W]`` to uint8 ``[..., W · 32 / bits]``."""
    # The words are little-endian, as the host is: byte i of a word holds bits 8i to 8i + 7.
    # A copy, because a dimension of length 1 may count as contiguous at a stride that no view accepts.
    octets = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 0x0F, octets >> 4), dim=-1).flatten(-2)


def slabs(rows: int, row_elements: int, multiple: int = 1) -> Iterator[slice]:
    """Cut ``rows`` into runs of about ``SLAB_ELEMENTS`` elements, each a multiple of ``multiple`` rows."""
    step = max(1, SLAB_ELEMENTS // max(1, row_elements * multiple)) * multiple
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
