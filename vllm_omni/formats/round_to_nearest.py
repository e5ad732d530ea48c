"""Quantization of a float weight by rounding to the nearest code."""

from __future__ import annotations

import torch

from vllm_omni.errors import FormatError
from vllm_omni.formats import contract
from vllm_omni.formats.affine import AffineCodes, middle
from vllm_omni.formats.words import slabs


def quantize(
    weight: torch.Tensor,
    *,
    group_size: int,
    bits: int,
    symmetric: bool,
    scales_exact_in_bfloat16: bool = False,
) -> AffineCodes:
    """``weight`` float16, bfloat16, float32 or float64 ``[N, K]`` to codes.

    Scales are rounded to 16 bits before codes are chosen, so a code is the nearest one to what the kernel
    will compute: float16, or bfloat16 when a scale lies outside float16's normal range. With
    ``scales_exact_in_bfloat16`` every scale is a bfloat16 number whatever type holds it, so that an engine
    that keeps scales in bfloat16 computes with the same weights.
    Raises :class:`FormatError` for a weight that is not finite.
    """
    bits = contract.require_bits(bits)
    group_size = contract.require_group_size(group_size)
    weight = contract.require_tensor("weight", weight, (*contract.FLOATS, torch.float64), ("N", "K"))
    n, k = weight.shape
    groups = contract.groups_in(k, group_size)
    size = k if group_size == -1 else group_size

    low = torch.empty((n, groups), dtype=torch.float32)
    high = torch.empty((n, groups), dtype=torch.float32)
    for rows in slabs(n, k):
        slab = weight[rows].float()
        finite = torch.isfinite(slab)
        if not bool(finite.all()):
            row, column = (~finite).nonzero()[0].tolist()
            value = weight[rows.start + row, column].item()
            raise FormatError(f"weight: expected finite values, got {value} at {[rows.start + row, column]}")
        grouped = _grouped(slab, groups, size)
        low[rows] = grouped.amin(-1).clamp_(max=0)
        high[rows] = grouped.amax(-1).clamp_(min=0)

    top = (1 << bits) - 1
    c = middle(bits)
    exact = torch.maximum(-low, high) / (c - 1) if symmetric else (high - low) / top
    scales = _sixteen_bit(exact.to(torch.bfloat16).float() if scales_exact_in_bfloat16 else exact)
    wide = scales.float()
    # A group of zeros has scale 0; any code stands for 0 there.
    step = torch.where(wide == 0, torch.ones_like(wide), wide)
    zeros = None if symmetric else (-low / step).round_().clamp_(0, top)

    codes = torch.empty((n, k), dtype=torch.uint8)
    for rows in slabs(n, k):
        q = (_grouped(weight[rows].float(), groups, size) / step[rows, :, None]).round_()
        q += c if zeros is None else zeros[rows, :, None]
        codes[rows] = q.clamp_(0, top).to(torch.uint8).flatten(1)[:, :k]
    return AffineCodes(
        codes=codes,
        scales=scales,
        zeros=None if zeros is None else zeros.to(torch.uint8),
        offsets=None,
        permutation=None,
        bits=bits,
        group_size=group_size,
    )


def _grouped(rows: torch.Tensor, groups: int, size: int) -> torch.Tensor:
    """``[rows, K]`` to ``[rows, groups, size]``, zeros after the last column."""
    short = groups * size - rows.shape[1]
    return (torch.nn.functional.pad(rows, (0, short)) if short else rows).unflatten(1, (groups, size))


def _sixteen_bit(exact: torch.Tensor) -> torch.Tensor:
    info = torch.finfo(torch.float16)
    used = exact[exact > 0]
    fits = used.numel() == 0 or (float(used.min()) >= info.tiny and float(used.max()) <= info.max)
    scales = exact.to(torch.float16 if fits else torch.bfloat16)
    if not bool(torch.isfinite(scales).all()):
        raise FormatError(
            f"weight: expected a range that bfloat16 scales can express, got {float(used.max())}"
        )
    return scales
