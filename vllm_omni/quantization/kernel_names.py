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


# More rows of activations than any kernel needs to be chosen.
MANY_ROWS = 4096


def kernel_name(dtype: torch.dtype, activation: int, bits: int, rows: int = 1) -> str | None:
    """The native kernel that multiplies weights of ``bits`` with so many ``rows``; ``None`` where the
    portable operators do.

    ``activation`` is the operators' code."""
    library = native().module
    if not ops.status().native or library is None:
        return None
    return str(library.select_kernel(DTYPE_NAMES[dtype], activation, bits, rows))


def kernel_names(dtype: torch.dtype, activation: int, bits: int) -> str | None:
    """The kernel of decoding one sequence, and that of prefill where it is another, for a log."""
    one, many = (kernel_name(dtype, activation, bits, rows) for rows in (1, MANY_ROWS))
    if one == many:
        return one
    return f"{one} (prefill {many}; AMX: not verified on hardware)"


def dense_kernel_name(dtype: torch.dtype, weights: torch.dtype) -> str | None:
    """The native kernel that multiplies with an unquantized weight; ``None`` where the portable operators
    do."""
    library = native().module
    if not ops.status().native or library is None:
        return None
    return str(library.select_dense_kernel(DTYPE_NAMES[dtype], DTYPE_NAMES[weights]))
