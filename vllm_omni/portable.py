"""The operators in plain torch: what the native kernels compute, from the same bytes, without them.

Numerics are those of the kernels: codes, zero-points and scales exact, products and sums in fp32, one
rounding to the result's type. Errors are RuntimeErrors, as an operator raises them. Slow: a weight is
dequantized slab by slab at every call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from vllm_omni import layout
from vllm_omni.errors import FormatError
from vllm_omni.formats.affine import middle
from vllm_omni.formats.words import slabs

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Embedding results, by the operator's dtype code.
ROW_DTYPES = {0: torch.bfloat16, 1: torch.float16, 2: torch.float32}
ACTIVATIONS = (0, 32, 128)


def linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, n: int, k: int, activation: int
) -> torch.Tensor:
    """``x`` ``[..., K]`` times a packed weight ``[N, K]``, plus ``bias`` ``[N]`` unless it is empty.

    Result ``[..., N]`` in ``x``'s type. ``activation``: 0 computes with ``x`` as it is; 32 or 128 with int8
    activations, one scale per row and per run of that many columns of a weight group.
    """
    segments = _segments(packed, n, k)
    if x.dtype not in FLOAT_DTYPES:
        raise RuntimeError(f"x: expected bfloat16 or float16 or float32, got {_name(x.dtype)}")
    if x.dim() < 1 or x.shape[-1] != k:
        raise RuntimeError(f"x: expected [..., {k}], got {list(x.shape)}")
    if activation not in ACTIVATIONS:
        raise RuntimeError(f"activation: expected 0 (native), 32 or 128 (int8 columns), got {activation}")
    _check_bias(bias, x.dtype, n)
    rows = x.detach().reshape(-1, k).float()
    y = torch.empty((rows.shape[0], n), dtype=torch.float32)
    start = 0
    for segment in segments:
        inputs = rows[:, layout.permutation_of(packed, segment)] if segment.permuted else rows
        if activation:
            inputs = _through_int8(inputs, segment.group_columns, activation)
        for at, weight in _dense_slabs(packed, segment):
            torch.matmul(inputs, weight.T, out=y[:, start + at : start + at + weight.shape[0]])
        start += segment.n
    if bias.numel() != 0:
        y += bias.float()
    return y.to(x.dtype).reshape(*x.shape[:-1], n)


def embedding(ids: torch.Tensor, packed: torch.Tensor, n: int, k: int, dtype: int) -> torch.Tensor:
    """Rows ``ids`` (int64 or int32, any shape) of a packed weight ``[N, K]``: ``[*ids.shape, K]``.

    ``dtype``: 0 bfloat16, 1 float16, 2 float32 (exact before the one rounding to it).
    """
    segments = _segments(packed, n, k)
    flat = _checked_ids(ids, dtype, n)
    out = torch.empty((flat.numel(), k), dtype=ROW_DTYPES[dtype])
    start = 0
    for segment in segments:
        mine = ((flat >= start) & (flat < start + segment.n)).nonzero().squeeze(1)
        for run in slabs(mine.numel(), segment.k * layout.PANEL_ROWS):
            out[mine[run]] = _rows(packed, segment, flat[mine[run]] - start).to(out.dtype)
        start += segment.n
    return out.reshape(*ids.shape, k)


def dense_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``x`` ``[..., K]`` times an unquantized weight ``[N, K]``, plus ``bias`` ``[N]`` unless it is empty.

    ``weight`` may have another float type than ``x``: it enters with the bits that it has. Its rows are read
    in place, so their elements must be adjacent. Result ``[..., N]`` in ``x``'s type.
    """
    n, k = _dense_shape(weight)
    if x.dtype not in FLOAT_DTYPES:
        raise RuntimeError(f"x: expected bfloat16 or float16 or float32, got {_name(x.dtype)}")
    if x.dim() < 1 or x.shape[-1] != k:
        raise RuntimeError(f"x: expected [..., {k}], got {list(x.shape)}")
    _check_bias(bias, x.dtype, n)
    rows = x.detach().reshape(math.prod(x.shape[:-1]), k).float()
    y = torch.empty((rows.shape[0], n), dtype=torch.float32)
    for run in slabs(n, max(k, 1)):
        torch.matmul(rows, weight.detach()[run].float().T, out=y[:, run])
    if bias.numel() != 0:
        y += bias.float()
    return y.to(x.dtype).reshape(*x.shape[:-1], n)


def dense_embedding(ids: torch.Tensor, weight: torch.Tensor, dtype: int) -> torch.Tensor:
    """Rows ``ids`` (int64 or int32, any shape) of an unquantized table ``[N, K]``: ``[*ids.shape, K]``.

    ``dtype``: 0 bfloat16, 1 float16, 2 float32: the stored bits where it is the table's type, rounded once
    elsewhere.
    """
    n, k = _dense_shape(weight)
    flat = _checked_ids(ids, dtype, n)
    return weight.detach()[flat].to(ROW_DTYPES[dtype]).reshape(*ids.shape, k)


def _check_bias(bias: torch.Tensor, dtype: torch.dtype, n: int) -> None:
    if bias.numel() == 0:
        return
    if bias.dtype != dtype:
        raise RuntimeError(f"bias: expected {_name(dtype)} as x, got {_name(bias.dtype)}")
    if bias.shape != (n,):
        raise RuntimeError(f"bias: expected [{n}], got {list(bias.shape)}")


def _checked_ids(ids: torch.Tensor, dtype: int, n: int) -> torch.Tensor:
    if ids.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"ids: expected int64 or int32, got {_name(ids.dtype)}")
    if dtype not in ROW_DTYPES:
        raise RuntimeError(f"dtype: expected 0 (bfloat16), 1 (float16) or 2 (float32), got {dtype}")
    flat = ids.reshape(-1).long()
    outside = (flat < 0) | (flat >= n)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise RuntimeError(f"ids[{at}]: expected 0 to {n - 1}, found {int(flat[at])}")
    return flat


def _dense_shape(weight: torch.Tensor) -> tuple[int, int]:
    if weight.dtype not in FLOAT_DTYPES:
        raise RuntimeError(f"weight: expected bfloat16 or float16 or float32, got {_name(weight.dtype)}")
    if weight.dim() != 2:
        raise RuntimeError(f"weight: expected [N, K], got {list(weight.shape)}")
    n, k = weight.shape
    if n > 0 and ((k > 1 and weight.stride(1) != 1) or (n > 1 and weight.stride(0) < k)):
        raise RuntimeError("weight: expected rows of adjacent elements, one behind the other")
    return n, k


def _segments(packed: torch.Tensor, n: int, k: int) -> tuple[layout.Segment, ...]:
    if packed.dtype != torch.uint8:
        raise RuntimeError(f"packed: expected uint8, got {_name(packed.dtype)}")
    if packed.dim() != 1 or not packed.is_contiguous():
        raise RuntimeError(f"packed: expected one contiguous dimension, got {list(packed.shape)}")
    try:
        segments = layout.parse(packed)
    except FormatError as error:
        raise RuntimeError(str(error)) from error
    found = [sum(s.n for s in segments), segments[0].k]
    if found != [n, k]:
        raise RuntimeError(f"packed: expected a weight of {[n, k]}, found one of {found}")
    return segments


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dense_slabs(packed: torch.Tensor, segment: layout.Segment) -> Iterator[tuple[int, torch.Tensor]]:
    """First row and float32 ``[rows, K]`` in packed column order, run by run of panels."""
    values = _GroupValues(packed, segment)
    for panels in slabs(segment.panels, layout.PANEL_ROWS * segment.k):
        start = panels.start * layout.PANEL_ROWS
        codes = layout.codes_of(packed, segment, panels)
        yield start, values.dense(codes, slice(start, start + codes.shape[0]))


def _rows(packed: torch.Tensor, segment: layout.Segment, ids: torch.Tensor) -> torch.Tensor:
    """float32 ``[ids, K]`` in original column order."""
    panels = segment.section(packed, "panels").view(segment.panels, segment.blocks, layout.PANEL_ROWS, 4)
    blocks = panels[ids // layout.PANEL_ROWS, :, ids % layout.PANEL_ROWS]  # [ids, blocks, 4]
    if segment.bits == 4:
        blocks = torch.cat((blocks & 0x0F, blocks >> 4), dim=-1)
    codes = blocks.flatten(1)[:, : segment.k]
    dense = _GroupValues(packed, segment).dense(codes, ids)
    if not segment.permuted:
        return dense
    scattered = torch.empty_like(dense)
    scattered[:, layout.permutation_of(packed, segment)] = dense
    return scattered


class _GroupValues:
    """Scales and zeros of a segment, ready to be spread over columns."""

    def __init__(self, packed: torch.Tensor, segment: layout.Segment) -> None:
        self._segment = segment
        self._scales = layout.scales_of(packed, segment)
        self._zeros = layout.zeros_of(packed, segment)
        self._offsets = layout.offsets_of(packed, segment)

    def dense(self, codes: torch.Tensor, rows: slice | torch.Tensor) -> torch.Tensor:
        """``s·(q − z)`` or ``s·q + m``: exact in fp32, or rounded once."""
        segment = self._segment
        short = segment.groups * segment.group_columns - segment.k
        dense = torch.nn.functional.pad(codes, (0, short)).float().unflatten(1, (segment.groups, -1))
        if self._zeros is not None:
            dense -= self._zeros[rows].float().unsqueeze(-1)
        elif self._offsets is None:
            dense -= middle(segment.bits)
        dense *= self._scales[rows].float().unsqueeze(-1)
        if self._offsets is not None:
            dense += self._offsets[rows].float().unsqueeze(-1)
        return dense.flatten(1)[:, : segment.k]


# Below this a chunk counts as zero: 127 / peak has to stay finite.
_SMALLEST_PEAK = 2.0**-120


def _through_int8(x: torch.Tensor, group_columns: int, chunk: int) -> torch.Tensor:
    """``x`` rounded to symmetric int8 and back: one scale per row and chunk; a group starts a new chunk."""
    quantized = torch.empty_like(x)
    for group in range(0, x.shape[1], group_columns):
        end = min(group + group_columns, x.shape[1])
        for start in range(group, end, chunk):
            part = x[:, start : min(start + chunk, end)]
            peak = part.abs().amax(dim=1, keepdim=True)
            scale = torch.where(peak < _SMALLEST_PEAK, 0.0, peak / 127.0)
            # A number divided by a tensor would be computed as a reciprocal and a product.
            inverse = torch.where(peak < _SMALLEST_PEAK, 0.0, torch.full_like(peak, 127.0) / peak)
            codes = (part * inverse).round_() * scale
            quantized[:, start : start + part.shape[1]] = torch.where(peak.isfinite(), codes, torch.nan)
    return quantized
