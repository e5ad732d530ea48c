"""AWQ ("gemm"): 4-bit codes and zero-points packed along N, interleaved."""

from __future__ import annotations

import torch

from vllm_omni.formats import contract
from vllm_omni.formats.affine import AffineCodes, zeros_or_none
from vllm_omni.formats.words import slabs, unpack_last

BITS = 4
# Nibble i of a word holds column 8c + (0, 2, 4, 6, 1, 3, 5, 7)[i]; so column 8c + j lies in nibble SLOT[j].
SLOT = (0, 4, 1, 5, 2, 6, 3, 7)


def unpack(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, *, group_size: int
) -> AffineCodes:
    """``qweight`` int32 ``[K, N / 8]``, ``qzeros`` int32 ``[groups, N / 8]``, ``scales`` ``[groups, N]`` to
    codes. Raises :class:`FormatError`."""
    group_size = contract.require_group_size(group_size)
    qweight = contract.require_tensor("qweight", qweight, (torch.int32,), ("K", "N/8"))
    k, words = qweight.shape
    n = words * 8
    groups = contract.groups_in(k, group_size)
    qzeros = contract.require_tensor("qzeros", qzeros, (torch.int32,), (groups, words))
    scales = contract.require_tensor("scales", scales, contract.FLOATS, (groups, n))

    codes = torch.empty((n, k), dtype=torch.uint8)
    for run in slabs(words, k * 8):
        codes[run.start * 8 : run.stop * 8] = _deinterleaved(qweight[:, run])
    return AffineCodes(
        codes=codes,
        scales=contract.stored_floats("scales", scales).T.contiguous(),
        zeros=zeros_or_none(_deinterleaved(qzeros), BITS),
        offsets=None,
        permutation=None,
        bits=BITS,
        group_size=group_size,
    )


def _deinterleaved(words: torch.Tensor) -> torch.Tensor:
    """int32 ``[rows, W]`` to uint8 ``[8 W, rows]``."""
    nibbles = unpack_last(words.T.unsqueeze(-1), BITS)  # [W, rows, 8]
    return nibbles[..., list(SLOT)].permute(0, 2, 1).reshape(-1, words.shape[0])
