"""What the log calls the kernels of a layer."""

from __future__ import annotations

import pytest
import torch

from vllm_omni import ops
from vllm_omni.native import native
from vllm_omni.quantization import kernel_names

ops.register_vllm_ops()


def test_one_name_where_one_kernel_serves_all() -> None:
    library = native().module
    assert library is not None
    library_name = library.select_kernel("f32", 0, 4)
    assert kernel_names.kernel_names(torch.float32, 0, 4) == library_name


def test_the_kernel_of_prefill_is_named_where_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(dtype: torch.dtype, activation: int, bits: int, rows: int = 1) -> str:
        return f"amx-bf16q{bits}" if rows >= 8 else f"avx512_vnni-i24q{bits}"

    monkeypatch.setattr(kernel_names, "kernel_name", name)
    assert kernel_names.kernel_names(torch.bfloat16, 0, 4) == (
        "avx512_vnni-i24q4 (prefill amx-bf16q4; AMX: not verified on hardware)"
    )
