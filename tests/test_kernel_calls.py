"""Which kernels ran, on how many packed tensors, how often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vllm_omni import _rust, int4, ops

NO_BIAS = torch.empty(0)
K = 64


@pytest.fixture(autouse=True)
def counted_from_zero() -> Iterator[None]:
    assert ops.status().native
    _rust.reset_kernel_calls()
    yield
    _rust.reset_kernel_calls()


def packed(n: int, bits: int) -> torch.Tensor:
    return int4.quantize(torch.randn(n, K), bits=bits, group_size=32).data


def linear(data: torch.Tensor, n: int, rows: int = 1, activation: int = 0) -> None:
    torch.ops.vllm_omni.int4_linear(torch.zeros(rows, K), data, NO_BIAS, n, K, activation)


def rows(data: torch.Tensor, n: int, ids: list[int]) -> None:
    torch.ops.vllm_omni.int4_embedding(torch.tensor(ids, dtype=torch.int64), data, n, K, 2)


def counts() -> dict[str, tuple[int, int, int]]:
    return {row.kernel: (row.bits, row.layers, row.calls) for row in _rust.kernel_calls()}


def test_layers_are_told_from_calls() -> None:
    layers = [packed(32, 4) for _ in range(3)]
    for _ in range(5):
        for data in layers:
            linear(data, 32)
    kernel = _rust.select_kernel("f32", 0, 4)
    assert counts() == {kernel: (4, 3, 15)}
    assert [row.untracked_calls for row in _rust.kernel_calls()] == [0]
    _rust.reset_kernel_calls()
    assert _rust.kernel_calls() == []


def test_the_kernel_that_ran_is_counted() -> None:
    data = packed(32, 4)
    linear(data, 32, activation=128)
    linear(data, 32, rows=7)
    int8, native = (_rust.select_kernel("f32", activation, 4) for activation in (128, 0))
    assert int8 != native
    assert counts() == {int8: (4, 1, 1), native: (4, 1, 1)}
    before = _rust.isa_level()
    _rust.set_isa_level("scalar")
    try:
        linear(data, 32)
    finally:
        _rust.set_isa_level(before)
    assert counts()["scalar-f32q4"][:2] == (4, 1)


def test_a_tensor_of_both_widths_counts_for_both() -> None:
    fused = torch.cat((packed(32, 4), packed(16, 8), packed(16, 4)))
    for _ in range(2):
        linear(fused, 64)
    four, eight = (_rust.select_kernel("f32", 0, bits) for bits in (4, 8))
    assert counts() == {four: (4, 1, 2), eight: (8, 1, 2)}


def test_a_table_that_is_head_as_well_counts_as_each() -> None:
    table = packed(48, 8)
    rows(table, 48, [1, 2, 3])
    rows(table, 48, [4])
    linear(table, 48)
    assert counts() == {"rows-q8": (8, 1, 2), _rust.select_kernel("f32", 0, 8): (8, 1, 1)}


def test_what_computes_nothing_is_not_counted() -> None:
    data = packed(32, 4)
    linear(data, 32, rows=0)
    rows(data, 32, [])
    with pytest.raises(RuntimeError):
        linear(data, 33)
    with pytest.raises(RuntimeError):
        rows(data, 32, [32])
    assert _rust.kernel_calls() == []


def test_more_tensors_than_the_table_holds_are_counted_as_calls() -> None:
    """Segments of 16 rows, one after another in one buffer, stand for tensors: each has its own address."""
    many = packed(16, 4).repeat(9000).chunk(9000)
    for data in many:
        linear(data, 16)
    (row,) = _rust.kernel_calls()
    assert row.calls == row.layers + row.untracked_calls == 9000
    assert row.layers > 7000
    assert row.untracked_calls >= 9000 - 8192
    assert repr(row).startswith(f"KernelCalls(kernel='{row.kernel}', bits=4, layers=")
    # A reset makes room for the tensors of the next model.
    _rust.reset_kernel_calls()
    for data in many[-50:]:
        linear(data, 16)
    assert counts() == {row.kernel: (4, 50, 50)}
