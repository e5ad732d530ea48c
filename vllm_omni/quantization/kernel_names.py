"""Which kernel serves a layer: the native library's answer under torch's types."""

from __future__ import annotations

from typing import Literal

import torch

from vllm_omni import ops
from vllm_omni.native import native

DtypeName = Literal["bf16", "f16", "f32"]

# Every model dtype that the kernels serve, by the native library's name.
DTYPE_NAMES: dict[torch.dtype, DtypeName] = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
}


def kernel_name(dtype: torch.dtype, activation: int, bits: int) -> str | None:
    """The native kernel that multiplies weights of ``bits``; ``None`` where the portable operators do.

    ``activation`` is the operators' code."""
    library = native().module
    if not ops.status().native or library is None:
        return None
    return str(library.select_kernel(DTYPE_NAMES[dtype], activation, bits))


def dense_kernel_name(dtype: torch.dtype, weights: torch.dtype) -> str | None:
    """The native kernel that multiplies with an unquantized weight; ``None`` where the portable operators
    do."""
    library = native().module
    if not ops.status().native or library is None:
        return None
    return str(library.select_dense_kernel(DTYPE_NAMES[dtype], DTYPE_NAMES[weights]))
