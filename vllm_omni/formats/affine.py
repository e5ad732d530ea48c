"""What every weight format is brought into before it is packed."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AffineCodes:
    """A weight ``[N, K]`` as unsigned codes ``q`` and one scale per row and group of columns.

    ``w = scale · (q − zero)``, or ``w = scale · q + offset`` when ``offsets`` is given. Without ``zeros`` and
    ``offsets`` the zero-point is the middle of the range: 8 for 4 bits, 128 for 8 bits.

    Attributes:
        codes: uint8 ``[N, K]``; column ``j`` holds original column ``permutation[j]``.
        scales: float16 or bfloat16 ``[N, groups]``, as stored in the checkpoint.
        zeros: uint8 ``[N, groups]``, or None.
        offsets: like ``scales``, or None. Never together with ``zeros``.
        permutation: int32 ``[K]``, or None when columns are in their original order.
        bits: 4 or 8.
        group_size: columns per group, a multiple of 8; −1 for one group per row.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    offsets: torch.Tensor | None
    permutation: torch.Tensor | None
    bits: int
    group_size: int


def middle(bits: int) -> int:
    """The zero-point of a symmetric code: 8 for 4 bits, 128 for 8 bits."""
    return 1 << (bits - 1)


def zeros_or_none(zeros: torch.Tensor, bits: int) -> torch.Tensor | None:
    """``zeros``, or None when each of them is the middle: the same weight, without a correction term."""
    return None if bool((zeros == middle(bits)).all()) else zeros.contiguous()
