"""The operators on unquantized tables: one row-major copy of a table serves rows and head."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tests.test_ops import layouts
from tests.test_portable import agree
from vllm_omni import _rust, ops, portable
from vllm_omni.quantization.kernel_names import DTYPE_NAMES

ops.register_vllm_ops()
LINEAR = [torch.ops.vllm_omni.dense_linear, torch.ops.vllm.cpu_dense_linear]
EMBEDDING = [torch.ops.vllm_omni.dense_embedding, torch.ops.vllm.cpu_dense_embedding]
NO_BIAS = torch.empty(0)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
PAIRS = list(itertools.product(FLOATS, FLOATS))
# Neither is a multiple of what a register or a panel holds.
N, K = 100, 75


def table(dtype: torch.dtype, n: int = N, k: int = K) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n)).to(dtype)


def test_native_kernels_are_in_use() -> None:
    assert ops.status() == ops.OpStatus(native=True, reason="")
    for name in ("dense_linear", "dense_embedding"):
        for qualified in (f"vllm_omni::{name}", f"vllm::cpu_{name}"):
            assert "CPU: registered at torch_abi.rs" in torch._C._dispatch_dump(qualified)


def test_schemas_are_plain() -> None:
    for linear, embedding in zip(LINEAR, EMBEDDING, strict=True):
        assert str(linear.default._schema).split("(")[1] == (
            "Tensor x, Tensor weight, Tensor bias) -> Tensor"
        )
        assert str(embedding.default._schema).split("(")[1] == (
            "Tensor ids, Tensor weight, int dtype) -> Tensor"
        )


@pytest.mark.parametrize("linear", LINEAR)
@pytest.mark.parametrize(("dtype", "weights"), PAIRS)
def test_opcheck_linear(linear, dtype: torch.dtype, weights: torch.dtype) -> None:
    for shape in ((3, K), (2, 3, K), (K,), (0, K)):
        for bias in (NO_BIAS, torch.randn(N, dtype=dtype)):
            torch.library.opcheck(linear, (torch.randn(shape, dtype=dtype), table(weights), bias))


@pytest.mark.parametrize(("dtype", "weights"), PAIRS)
def test_no_inputs_give_the_bias(dtype: torch.dtype, weights: torch.dtype) -> None:
    """A tensor without elements has no memory, and strides that say nothing."""
    x, weight, bias = torch.randn(3, 0, dtype=dtype), table(weights, N, 0), torch.randn(N, dtype=dtype)
    assert torch.equal(LINEAR[0](x, weight, bias), bias.expand(3, N))
    assert torch.equal(LINEAR[0](x, weight, NO_BIAS), torch.zeros(3, N, dtype=dtype))
    assert portable.dense_linear(x, weight, bias).shape == (3, N)
    assert EMBEDDING[0](torch.tensor([1, 99]), weight, 0).shape == (2, 0)


@pytest.mark.parametrize("embedding", EMBEDDING)
@pytest.mark.parametrize("weights", FLOATS)
def test_opcheck_embedding(embedding, weights: torch.dtype) -> None:
    for ids in (torch.tensor([3, 99]), torch.tensor(5), torch.zeros(2, 0, dtype=torch.int64)):
        for dtype in (0, 1, 2):
            torch.library.opcheck(embedding, (ids, table(weights), dtype))


@pytest.mark.parametrize(("dtype", "weights"), PAIRS)
def test_linear_agrees_with_float64_and_with_the_portable_kernel(
    dtype: torch.dtype, weights: torch.dtype
) -> None:
    for n, k, m in ((1, 1, 1), (N, K, 1), (35, 2048, 3), (1000, 64, 9), (48, 3000, 200)):
        weight = table(weights, n, k)
        x = torch.randn(m, k).to(dtype)
        for bias in (NO_BIAS, torch.randn(n).to(dtype)):
            y = LINEAR[0](x, weight, bias)
            exact = x.double() @ weight.double().T + (bias.double() if bias.numel() else 0)
            rounding = torch.finfo(dtype).eps * exact.abs()
            sums = 2.0**-23 * (k + 1) * x.double().abs().amax() * weight.double().abs().amax()
            assert bool(((y.double() - exact).abs() <= rounding + sums).all())
            agree(portable.dense_linear(x, weight, bias), y)


@pytest.mark.parametrize("weights", FLOATS)
def test_rows_are_those_of_the_table(weights: torch.dtype) -> None:
    weight = table(weights)
    ids = torch.arange(N).flip(0).repeat(2).view(2, N)
    for code, dtype in portable.ROW_DTYPES.items():
        rows = EMBEDDING[0](ids, weight, code)
        assert rows.dtype == dtype
        assert torch.equal(rows, weight[ids].to(dtype))
        assert torch.equal(rows, portable.dense_embedding(ids, weight, code))
        assert torch.equal(rows, EMBEDDING[0](ids.int(), weight, code))


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_memory_layout_gives_the_same(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6, K).to(dtype)
    weight = table(torch.bfloat16)
    expected = LINEAR[0](x.reshape(24, K), weight, NO_BIAS).view(4, 6, N)
    for name, view in layouts(x).items():
        assert torch.equal(LINEAR[0](view, weight, NO_BIAS), expected), name
    # A kernel sums each output in one order, however many rows there are.
    assert torch.equal(LINEAR[0](x[1, 2], weight, NO_BIAS), expected[1, 2])
    wide = torch.full((N, K + 9), float("nan"), dtype=torch.bfloat16)
    wide[:, 2 : K + 2] = weight
    strided = wide[:, 2 : K + 2]
    assert torch.equal(LINEAR[0](x, strided, NO_BIAS), expected)
    assert torch.equal(EMBEDDING[0](torch.arange(N), strided, 0), weight)
    bias = torch.randn(2 * N).to(dtype)[::2]
    assert torch.equal(LINEAR[0](x, weight, bias), LINEAR[0](x, weight, bias.contiguous()))


def call(which: str, **changed) -> Callable[[], torch.Tensor]:
    if which == "linear":
        arguments = {"x": torch.zeros(2, K), "weight": table(torch.float16), "bias": NO_BIAS}
        return lambda: LINEAR[0](**(arguments | changed))
    arguments = {"ids": torch.tensor([1]), "weight": table(torch.float16), "dtype": 2}
    return lambda: EMBEDDING[0](**(arguments | changed))


BAD_CALLS = [
    (call("linear", x=torch.zeros(2, K).double()), "x: expected bfloat16 or float16 or float32, got float64"),
    (call("linear", x=torch.zeros(2, K + 1)), rf"x: expected \[..., {K}\], got \[2, {K + 1}\]"),
    (call("linear", x=torch.tensor(1.0)), rf"x: expected \[..., {K}\], got \[\]"),
    (
        call("linear", weight=torch.zeros(N, K, dtype=torch.int8)),
        "weight: expected bfloat16 or float16 or float32, got int8",
    ),
    (call("linear", weight=torch.zeros(K)), rf"weight: expected \[N, K\], got \[{K}\]"),
    (call("linear", weight=torch.zeros(K, N).T), "weight: expected rows of adjacent elements"),
    (call("linear", weight=torch.zeros(1, K).expand(N, K)), "weight: expected rows of adjacent elements"),
    (call("linear", bias=torch.zeros(N - 1)), rf"bias: expected \[{N}\], got \[{N - 1}\]"),
    (call("linear", bias=torch.zeros(N).half()), "bias: expected float32.*, got float16"),
    (call("embedding", ids=torch.tensor([1, N])), rf"ids\[1\]: expected 0 to {N - 1}, found {N}"),
    (call("embedding", ids=torch.tensor([-1])), rf"ids\[0\]: expected 0 to {N - 1}, found -1"),
    (call("embedding", ids=torch.tensor([1.0])), "ids: expected int64 or int32, got float32"),
    (call("embedding", dtype=3), r"dtype: expected 0 \(bfloat16\), 1 \(float16\) or 2 \(float32\), got 3"),
    (call("embedding", weight=torch.zeros(2, 3, 4)), r"weight: expected \[N, K\], got \[2, 3, 4\]"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_CALLS)
def test_a_broken_contract_is_a_runtime_error(bad, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        bad()


@pytest.mark.parametrize(("bad", "message"), BAD_CALLS)
def test_the_portable_kernels_refuse_the_same(bad, message: str, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "LINEAR", [portable.dense_linear])
    monkeypatch.setitem(globals(), "EMBEDDING", [portable.dense_embedding])
    with pytest.raises(RuntimeError, match=message):
        bad()


def test_values_that_are_not_finite_stay_so() -> None:
    x = torch.ones(3, K)
    x[1, 7] = float("nan")
    weight = table(torch.bfloat16)
    weight[4, 70] = float("inf")
    y = LINEAR[0](x, weight, NO_BIAS)
    assert bool(y[1].isnan().all())
    assert torch.equal(y[0], y[2])
    assert y[0].isfinite().sum() == N - 1
    assert y[0, 4] == float("inf")


def test_the_number_of_threads_changes_nothing() -> None:
    weight = table(torch.bfloat16, 2048, 512)
    x = torch.randn(33, 512)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append((LINEAR[0](x, weight, NO_BIAS), EMBEDDING[0](torch.arange(2048), weight, 2)))
    finally:
        torch.set_num_threads(before)
    for y, rows in results[1:]:
        assert torch.equal(y, results[0][0])
        assert torch.equal(rows, results[0][1])


def counts() -> dict[str, tuple[int, int, int]]:
    return {row.kernel: (row.bits, row.layers, row.calls) for row in _rust.kernel_calls()}


@pytest.mark.parametrize(("dtype", "weights"), PAIRS)
def test_calls_are_counted_by_kernel(dtype: torch.dtype, weights: torch.dtype) -> None:
    weight = table(weights)
    kernel = _rust.select_dense_kernel(DTYPE_NAMES[dtype], DTYPE_NAMES[weights])
    bits = 8 * weights.itemsize
    _rust.reset_kernel_calls()
    try:
        for rows in (1, 7, 0):
            LINEAR[0](torch.zeros(rows, K, dtype=dtype), weight, NO_BIAS)
        EMBEDDING[0](torch.tensor([1, 2]), weight, 0)
        EMBEDDING[0](torch.tensor([], dtype=torch.int64), weight, 0)
        assert counts() == {kernel: (bits, 1, 2), f"rows-w{bits}": (bits, 1, 1)}
    finally:
        _rust.reset_kernel_calls()


def test_the_level_in_use_limits_the_kernels() -> None:
    infos = {info.name: info for info in _rust.kernels()}
    before = _rust.isa_level()
    try:
        _rust.set_isa_level("scalar")
        for dtype, weights in itertools.product(DTYPE_NAMES.values(), repeat=2):
            name = _rust.select_dense_kernel(dtype, weights)
            assert infos[name].isa == "scalar"
            assert infos[name].bits == (32 if weights == "f32" else 16)
    finally:
        _rust.set_isa_level(before)
    with pytest.raises(ValueError, match="dtype: expected bf16, f16 or f32"):
        _rust.select_dense_kernel("f32", "f64")  # type: ignore[arg-type]
