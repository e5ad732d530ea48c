"""GPTQ: codes packed along K, zero-points along N."""

from __future__ import annotations

import warnings

import torch

from vllm_omni.errors import FormatError
from vllm_omni.formats import contract
from vllm_omni.formats.act_order import permutation_of
from vllm_omni.formats.affine import AffineCodes, middle, zeros_or_none
from vllm_omni.formats.words import per_word, slabs, unpack_last

# What is added to a stored zero-point: the first GPTQ writers stored z − 1.
ZERO_SHIFT = {"gptq": 1, "gptq_v2": 0}


def unpack(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None,
    *,
    group_size: int,
    bits: int,
    checkpoint_format: str,
    sym: bool,
) -> AffineCodes:
    """``qweight`` int32 ``[K · bits / 32, N]``, ``qzeros`` int32 ``[groups, ⌈N · bits / 32⌉]``, ``scales``
    ``[groups, N]``, ``g_idx`` ``[K]`` to codes. Raises :class:`FormatError`."""
    bits = contract.require_bits(bits)
    group_size = contract.require_group_size(group_size)
    if checkpoint_format not in ZERO_SHIFT:
        raise FormatError(f"checkpoint_format: expected {' or '.join(ZERO_SHIFT)}, got {checkpoint_format!r}")
    per = per_word(bits)
    qweight = contract.require_tensor("qweight", qweight, (torch.int32,), ("K*bits/32", "N"))
    n, k = qweight.shape[1], qweight.shape[0] * per
    groups = contract.groups_in(k, group_size)
    scales = contract.require_tensor("scales", scales, contract.FLOATS, (groups, n))
    qzeros = contract.require_tensor("qzeros", qzeros, (torch.int32,), (groups, -(-n // per)))
    permutation = permutation_of("g_idx", g_idx, k, group_size)
    zeros = _zeros(unpack_last(qzeros, bits)[:, :n].T, bits, checkpoint_format, sym)

    codes = torch.empty((n, k), dtype=torch.uint8)
    for rows in slabs(n, k):
        slab = unpack_last(qweight[:, rows].T, bits)
        codes[rows] = slab if permutation is None else slab[:, permutation]
    return AffineCodes(
        codes=codes,
        scales=contract.stored_floats("scales", scales).T.contiguous(),
        zeros=zeros,
        offsets=None,
        permutation=permutation,
        bits=bits,
        group_size=group_size,
    )


def _zeros(stored: torch.Tensor, bits: int, checkpoint_format: str, sym: bool) -> torch.Tensor | None:
    """The true zero-points, uint8 ``[N, groups]``, or None when all of them are the middle.

    A symmetric checkpoint proves its own convention: its zero-points are all the middle, so they are stored
    as middle − 1 (``gptq``) or middle (``gptq_v2``) throughout, whatever the label says. An asymmetric one
    cannot be told apart: there the label is trusted.
    """
    if not sym:
        return zeros_or_none((stored + ZERO_SHIFT[checkpoint_format]) & ((1 << bits) - 1), bits)
    c = middle(bits)
    for convention, shift in ZERO_SHIFT.items():
        if bool((stored == c - shift).all()):
            if convention != checkpoint_format:
                warnings.warn(
                    f"qzeros: checkpoint_format says {checkpoint_format}, but every stored zero-point is "
                    f"{c - shift}, which is {convention} of a symmetric weight; read as {convention}",
                    stacklevel=2,
                )
            return None
    raise FormatError(
        f"qzeros: expected {c - 1} throughout (gptq) or {c} throughout (gptq_v2) because sym is true, "
        f"got values from {int(stored.min())} to {int(stored.max())}"
    )
