"""ggml blocks of 32 columns: Q4_0, Q4_1 and Q8_0, each carried over exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_omni.errors import FormatError
from vllm_omni.formats import contract
from vllm_omni.formats.affine import AffineCodes
from vllm_omni.formats.words import slabs

BLOCK_COLUMNS = 32


@dataclass(frozen=True)
class BlockType:
    """One ggml type: a block is fp16 scale | fp16 offset, if any | codes."""

    bits: int
    has_offset: bool

    @property
    def code_start(self) -> int:
        return 4 if self.has_offset else 2

    @property
    def block_bytes(self) -> int:
        return self.code_start + BLOCK_COLUMNS * self.bits // 8


BLOCK_TYPES = {
    "Q4_0": BlockType(bits=4, has_offset=False),
    "Q4_1": BlockType(bits=4, has_offset=True),
    "Q8_0": BlockType(bits=8, has_offset=False),
}


def unpack(raw_uint8: torch.Tensor, *, ggml_type: str, shape: tuple[int, int]) -> AffineCodes:
    """The raw bytes of a tensor ``shape`` = ``(N, K)``, flat or ``[N, row bytes]``, to codes.

    ``ggml_type`` is a name or a member of ``gguf.GGMLQuantizationType``. Raises :class:`FormatError`.
    """
    name = str(getattr(ggml_type, "name", ggml_type))
    if name not in BLOCK_TYPES:
        raise FormatError(f"ggml_type: expected {', '.join(BLOCK_TYPES)}, got {name}")
    block = BLOCK_TYPES[name]
    n, k = (int(v) for v in shape) if len(shape) == 2 else (0, 0)
    if n < 1 or k < 1 or k % BLOCK_COLUMNS:
        raise FormatError(
            f"shape: expected (N, K) with K a multiple of {BLOCK_COLUMNS} for {name}, got {tuple(shape)}"
        )
    blocks = k // BLOCK_COLUMNS
    row_bytes = blocks * block.block_bytes
    if not isinstance(raw_uint8, torch.Tensor) or raw_uint8.dtype != torch.uint8:
        got = (
            contract.described(raw_uint8) if isinstance(raw_uint8, torch.Tensor) else type(raw_uint8).__name__
        )
        raise FormatError(f"raw_uint8: expected uint8 [{n}, {row_bytes}] of {name}, got {got}")
    if raw_uint8.shape not in ((n, row_bytes), (n * row_bytes,)):
        raise FormatError(
            f"raw_uint8: expected {n * row_bytes} bytes as uint8 [{n}, {row_bytes}] of {name} for shape "
            f"{[n, k]}, got {raw_uint8.numel()} bytes as {contract.described(raw_uint8)}"
        )
    data = raw_uint8.reshape(n, blocks, block.block_bytes)

    codes = torch.empty((n, k), dtype=torch.uint8)
    for rows in slabs(n, k):
        stored = data[rows, :, block.code_start :]
        if block.bits == 8:
            codes[rows] = (stored ^ 0x80).reshape(-1, k)  # int8 q to unsigned q + 128
        else:  # byte i: column i in the low nibble, column 16 + i in the high one
            codes[rows] = torch.cat((stored & 0x0F, stored >> 4), dim=-1).reshape(-1, k)
    offsets = _halves(data, 2, f"{name} offsets") if block.has_offset else None
    return AffineCodes(
        codes=codes,
        scales=_halves(data, 0, f"{name} scales"),
        zeros=None,
        offsets=offsets,
        permutation=None,
        bits=block.bits,
        group_size=BLOCK_COLUMNS,
    )


def _halves(data: torch.Tensor, start: int, name: str) -> torch.Tensor:
    """The fp16 at byte ``start`` of every block, ``[N, blocks]``."""
    return contract.stored_floats(
        name, data[..., start : start + 2].contiguous().view(torch.float16).squeeze(-1)
    )
