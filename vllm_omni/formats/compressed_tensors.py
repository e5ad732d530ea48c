"""compressed-tensors ``pack-quantized``: codes packed along K, zero-points along N, both stored unsigned."""

from __future__ import annotations

import torch

from vllm_omni.errors import FormatError
from vllm_omni.formats import contract
from vllm_omni.formats.act_order import permutation_of
from vllm_omni.formats.affine import AffineCodes, zeros_or_none
from vllm_omni.formats.words import per_word, slabs, unpack_last


def unpack(
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_shape: torch.Tensor,
    weight_zero_point: torch.Tensor | None,
    weight_g_idx: torch.Tensor | None,
    *,
    group_size: int,
    bits: int | None,
) -> AffineCodes:
    """``weight_packed`` int32 ``[N, ⌈K · bits / 32⌉]``, ``weight_scale`` ``[N, groups]``, ``weight_shape``
    integer ``[2]``, ``weight_zero_point`` int32 ``[⌈N · bits / 32⌉, groups]``, ``weight_g_idx`` ``[K]`` to
    codes. Without ``bits`` they follow from the width of ``weight_packed``. Raises :class:`FormatError`."""
    group_size = contract.require_group_size(group_size)
    weight_shape = contract.require_tensor("weight_shape", weight_shape, (torch.int64, torch.int32), (2,))
    n, k = (int(v) for v in weight_shape)
    if n < 1 or k < 1:
        raise FormatError(f"weight_shape: expected two positive numbers, got {[n, k]}")
    packed = contract.require_tensor("weight_packed", weight_packed, (torch.int32,), ("N", "K*bits/32"))
    bits = _bits(packed, n, k) if bits is None else contract.require_bits(bits)
    per = per_word(bits)
    if tuple(packed.shape) != (n, -(-k // per)):
        raise FormatError(
            f"weight_packed: expected int32 {[n, -(-k // per)]} for weight_shape {[n, k]} at {bits} bits, "
            f"got {contract.described(packed)}"
        )
    groups = contract.groups_in(k, group_size)
    scales = contract.require_tensor("weight_scale", weight_scale, contract.FLOATS, (n, groups))
    zeros = None
    if weight_zero_point is not None:
        shape = (-(-n // per), groups)
        stored = contract.require_tensor("weight_zero_point", weight_zero_point, (torch.int32,), shape)
        zeros = zeros_or_none(unpack_last(stored.T, bits)[:, :n].T, bits)
    permutation = permutation_of("weight_g_idx", weight_g_idx, k, group_size)

    codes = torch.empty((n, k), dtype=torch.uint8)
    for rows in slabs(n, k):
        slab = unpack_last(packed[rows], bits)[:, :k]
        codes[rows] = slab if permutation is None else slab[:, permutation]
    return AffineCodes(
        codes=codes,
        scales=contract.stored_floats("weight_scale", scales),
        zeros=zeros,
        offsets=None,
        permutation=permutation,
        bits=bits,
        group_size=group_size,
    )


def _bits(packed: torch.Tensor, n: int, k: int) -> int:
    fitting = [bits for bits in (4, 8) if packed.shape == (n, -(-k // per_word(bits)))]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise FormatError(f"bits: expected 4 or 8 for weight_shape {[n, k]}, whose words fit both, got None")
    raise FormatError(
        f"weight_packed: expected int32 {[n, -(-k // 8)]} (4 bits) or {[n, -(-k // 4)]} (8 bits) for "
        f"weight_shape {[n, k]}, got {contract.described(packed)}"
    )
