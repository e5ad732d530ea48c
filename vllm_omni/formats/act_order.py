"""``g_idx``: the group of each input column, as GPTQ's act-order and compressed-tensors store it."""

from __future__ import annotations

import torch

from vllm_omni.errors import FormatError
from vllm_omni.formats.contract import groups_in, require_tensor


def permutation_of(name: str, g_idx: torch.Tensor | None, k: int, group_size: int) -> torch.Tensor | None:
    """The column order in which groups are contiguous, int32 ``[K]``, or None when they already are.

    None and a ``g_idx`` of −1 throughout mean that there is no act-order. Every group must hold
    ``group_size`` columns, the last one what is left; anything else is refused.
    """
    if g_idx is None:
        return None
    g_idx = require_tensor(name, g_idx, (torch.int32, torch.int64), (k,)).long()
    if bool((g_idx == -1).all()):
        return None
    groups = groups_in(k, group_size)
    outside = (g_idx < 0) | (g_idx >= groups)
    if bool(outside.any()):
        column = int(outside.nonzero()[0])
        raise FormatError(
            f"{name}: expected groups 0 to {groups - 1}, got {int(g_idx[column])} for column {column}"
        )
    size = k if group_size == -1 else group_size
    counts = torch.bincount(g_idx, minlength=groups)
    expected = torch.full_like(counts, size)
    expected[-1] = k - (groups - 1) * size
    if not torch.equal(counts, expected):
        group = int((counts != expected).nonzero()[0])
        raise FormatError(
            f"{name}: expected {int(expected[group])} columns in group {group}, got {int(counts[group])}"
        )
    if bool((g_idx[1:] >= g_idx[:-1]).all()):
        return None
    return torch.argsort(g_idx, stable=True).to(torch.int32)
