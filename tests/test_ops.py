from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from vllm_omni import int4, monitor, ops, portable

ops.register_vllm_ops()
LINEAR = [torch.ops.vllm_omni.int4_linear, torch.ops.vllm.cpu_int4_linear]
EMBEDDING = [torch.ops.vllm_omni.int4_embedding, torch.ops.vllm.cpu_int4_embedding]
NO_BIAS = torch.empty(0)
N, K = 100, 80


@pytest.fixture(scope="module")
def packed() -> torch.Tensor:
    torch.manual_seed(0)
    return int4.quantize(torch.randn(N, K) * 0.05, group_size=32, symmetric=False).data


def test_native_kernels_are_in_use():
    assert ops.status() == ops.OpStatus(native=True, reason="")
    for name in ("vllm_omni::int4_linear", "vllm_omni::int4_embedding", "vllm::cpu_int4_linear"):
        assert "CPU: registered at torch_abi.rs" in torch._C._dispatch_dump(name)
    ops.register_vllm_ops()  # a second time is no error


def test_schemas_are_plain():
    for linear, embedding in zip(LINEAR, EMBEDDING, strict=True):
        assert str(linear.default._schema).split("(")[1] == (
            "Tensor x, Tensor packed, Tensor bias, int n, int k, int activation) -> Tensor"
        )
        assert str(embedding.default._schema).split("(")[1] == (
            "Tensor ids, Tensor packed, int n, int k, int dtype) -> Tensor"
        )


@pytest.mark.parametrize("linear", LINEAR)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_opcheck_linear(linear, dtype: torch.dtype, packed: torch.Tensor):
    for shape in ((3, K), (2, 3, K), (K,), (0, K)):
        for bias in (NO_BIAS, torch.randn(N, dtype=dtype)):
            torch.library.opcheck(linear, (torch.randn(shape, dtype=dtype), packed, bias, N, K, 0))
    torch.library.opcheck(linear, (torch.randn(3, K, dtype=dtype), packed, NO_BIAS, N, K, 128))


@pytest.mark.parametrize("embedding", EMBEDDING)
def test_opcheck_embedding(embedding, packed: torch.Tensor):
    for ids in (torch.tensor([3, 99]), torch.tensor(5), torch.zeros(2, 0, dtype=torch.int64)):
        for dtype in (0, 1, 2):
            torch.library.opcheck(embedding, (ids, packed, N, K, dtype))


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """``x`` [4, 6, k] in memory layouts that a kernel may meet; each equals it."""
    k = x.shape[-1]
    wide = torch.full((4, 6, k + 9), float("nan"), dtype=x.dtype)
    wide[..., 5 : k + 5] = x
    every_other = torch.full((4, 12, k), float("nan"), dtype=x.dtype)
    every_other[:, ::2] = x
    odd = torch.empty(x.numel() * x.itemsize + 1, dtype=torch.uint8)[1:]
    return {
        "contiguous": x,
        "rows of a wider tensor": wide[..., 5 : k + 5],
        "every other row": every_other[:, ::2],
        "columns first": x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        "rows swapped": x.transpose(0, 1).contiguous().transpose(0, 1),
        "strided columns": torch.stack((x, x + 1), dim=-1)[..., 0],
        "offset by one element": torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape),
        "one row of many": x,
        "misaligned": _misaligned(x, odd),
    }


def _misaligned(x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    memory.copy_(x.contiguous().flatten().view(torch.uint8))
    view = torch.frombuffer(memory.numpy(), dtype=x.dtype).view(x.shape)
    assert view.data_ptr() % x.itemsize
    return view


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_any_memory_layout_gives_the_same(dtype: torch.dtype, packed: torch.Tensor):
    x = torch.randn(4, 6, K).to(dtype)
    expected = LINEAR[0](x.reshape(24, K), packed, NO_BIAS, N, K, 0).view(4, 6, N)
    for name, view in layouts(x).items():
        assert torch.equal(view, x), name
        y = LINEAR[0](view, packed, NO_BIAS, N, K, 0)
        assert torch.equal(y, expected), name
        assert y.is_contiguous(), name
    for rows in (x[1, 2], x[:1, :1], x[2], x[:, 3]):
        alone = LINEAR[0](rows, packed, NO_BIAS, N, K, 0)
        # Another number of rows may be summed in another order.
        torch.testing.assert_close(alone, LINEAR[0](rows.clone(), packed, NO_BIAS, N, K, 0), rtol=0, atol=0)
    repeated = x[0, :1].expand(5, K)
    assert torch.equal(
        LINEAR[0](repeated, packed, NO_BIAS, N, K, 0)[0], LINEAR[0](repeated, packed, NO_BIAS, N, K, 0)[4]
    )
    assert LINEAR[0](x[:0], packed, NO_BIAS, N, K, 0).shape == (0, 6, N)
    bias = torch.randn(2 * N).to(dtype)[::2]
    assert torch.equal(LINEAR[0](x, packed, bias, N, K, 0), LINEAR[0](x, packed, bias.contiguous(), N, K, 0))
    ids = torch.arange(N)
    strided = torch.stack((ids, ids), dim=1)[:, 0]
    for view in (strided, strided.int(), ids.flip(0).flip(0)):
        assert torch.equal(EMBEDDING[0](view, packed, N, K, 2), EMBEDDING[0](ids, packed, N, K, 2))


def call(which: str, **changed) -> Callable[[torch.Tensor], torch.Tensor]:
    if which == "linear":
        arguments = {"x": torch.zeros(2, K), "bias": NO_BIAS, "n": N, "k": K, "activation": 0}
        return lambda packed: LINEAR[0](**{**arguments, "packed": packed, **changed})
    arguments = {"ids": torch.tensor([1]), "n": N, "k": K, "dtype": 2}
    return lambda packed: EMBEDDING[0](**{**arguments, "packed": packed, **changed})


BAD_CALLS = [
    (call("linear", x=torch.zeros(2, K).double()), "x: expected bfloat16 or float16 or float32, got float64"),
    (call("linear", x=torch.zeros(2, K).int()), "x: expected bfloat16 or float16 or float32, got int32"),
    (call("linear", x=torch.zeros(2, K + 1)), rf"x: expected \[..., {K}\], got \[2, {K + 1}\]"),
    (call("linear", x=torch.tensor(1.0)), rf"x: expected \[..., {K}\], got \[\]"),
    (call("linear", n=N + 1), rf"packed: expected a weight of \[{N + 1}, {K}\], found one of \[{N}, {K}\]"),
    (call("linear", k=K - 8, x=torch.zeros(2, K - 8)), "packed: expected a weight of"),
    (call("linear", activation=64), r"activation: expected 0 \(native\), 32 or 128 \(int8 columns\), got 64"),
    (call("linear", bias=torch.zeros(N - 1)), rf"bias: expected \[{N}\], got \[{N - 1}\]"),
    (call("linear", bias=torch.zeros(1, N)), rf"bias: expected \[{N}\], got \[1, {N}\]"),
    (call("linear", bias=torch.zeros(N).half()), "bias: expected float32.*, got float16"),
    (call("linear", packed=torch.zeros(64, dtype=torch.int8)), "packed: expected uint8, got int8"),
    (
        call("linear", packed=torch.zeros(2, 64, dtype=torch.uint8)),
        "packed: expected one contiguous dimension",
    ),
    (call("linear", packed=torch.zeros(4096, dtype=torch.uint8)), "segment 0"),
    (call("linear", packed=torch.zeros(0, dtype=torch.uint8)), "truncated|at least one segment"),
    (call("embedding", ids=torch.tensor([1, N])), rf"ids\[1\]: expected 0 to {N - 1}, found {N}"),
    (call("embedding", ids=torch.tensor([-1])), rf"ids\[0\]: expected 0 to {N - 1}, found -1"),
    (call("embedding", ids=torch.tensor([2**62])), f"found {2**62}"),
    (call("embedding", ids=torch.tensor([1.0])), "ids: expected int64 or int32, got float32"),
    (call("embedding", ids=torch.tensor([1], dtype=torch.int16)), "ids: expected int64 or int32, got int16"),
    (call("embedding", dtype=3), r"dtype: expected 0 \(bfloat16\), 1 \(float16\) or 2 \(float32\), got 3"),
    (call("embedding", n=N - 1), "packed: expected a weight of"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_CALLS)
def test_a_broken_contract_is_a_runtime_error(bad, message: str, packed: torch.Tensor):
    with pytest.raises(RuntimeError, match=message):
        bad(packed)


@pytest.mark.parametrize(("bad", "message"), BAD_CALLS)
def test_the_portable_kernels_refuse_the_same(bad, message: str, packed: torch.Tensor, monkeypatch):
    monkeypatch.setitem(globals(), "LINEAR", [portable.linear])
    monkeypatch.setitem(globals(), "EMBEDDING", [portable.embedding])
    with pytest.raises(RuntimeError, match=message):
        bad(packed)


def test_truncated_and_altered_bytes_are_runtime_errors(packed: torch.Tensor):
    for altered, message in (
        (packed[:-64], "truncated"),
        (packed[1:], "segment 0"),
        (torch.cat((packed, packed[:-1])), "truncated"),
        (packed[::2], "contiguous"),
    ):
        for k in (K, 2 * K):
            with pytest.raises(RuntimeError, match=message):
                LINEAR[0](torch.zeros(1, k), altered, NO_BIAS, N, k, 0)


def test_errors_leak_nothing(packed: torch.Tensor):
    """20,000 raises whose messages are over 100 bytes: one leaked message, or one leaked tensor object, each
    would grow the heap by more than the bound."""
    tensors = torch.zeros(*[1] * 50, 4096), packed.clone(), torch.zeros(3)
    raises, message_bytes = 20_000, 100

    def raise_many(times: int) -> str:
        message = ""
        for _ in range(times):
            try:
                LINEAR[0](*tensors, N, K, 0)
            except RuntimeError as error:
                message = str(error)
        return message

    raise_many(2000)
    before = monitor.process_memory(pss=False).rss_anon_bytes
    message = raise_many(raises)
    grown = monitor.process_memory(pss=False).rss_anon_bytes - before
    assert len(message) >= message_bytes
    assert grown < raises * message_bytes / 2
    assert [tensor._use_count() for tensor in tensors] == [1, 1, 1]


def test_values_that_are_not_finite_stay_so(packed: torch.Tensor):
    x = torch.ones(2, K)
    x[1, 7] = float("nan")
    for activation in (0, 128):
        y = LINEAR[0](x, packed, NO_BIAS, N, K, activation)
        assert bool(y[0].isfinite().all())
        assert bool(y[1].isnan().all())


def test_threads_may_call_at_once(packed: torch.Tensor):
    x = torch.randn(64, K)
    expected = LINEAR[0](x, packed, NO_BIAS, N, K, 0)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if not torch.equal(LINEAR[0](x, packed, NO_BIAS, N, K, 0), expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_number_of_threads_changes_nothing():
    weight = int4.quantize(torch.randn(2048, 512))
    x = torch.randn(33, 512)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(weight.linear(x))
            results.append(weight.rows(torch.arange(2048)).sum())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], y) for y in results[2::2])
    assert all(torch.equal(results[1], y) for y in results[3::2])


class Layer(torch.nn.Module):
    """Embedding, two linear layers and what stands between them in a model."""

    def __init__(self, table: int4.PackedWeight, up: int4.PackedWeight, down: int4.PackedWeight) -> None:
        super().__init__()
        for name, weight in (("table", table), ("up", up), ("down", down)):
            self.register_buffer(name, weight.data)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.ops.vllm.cpu_int4_embedding(ids, self.table, 50, 64, 0)
        gate = torch.ops.vllm.cpu_int4_linear(x, self.up, NO_BIAS, 96, 64, 0)
        return x + torch.ops.vllm.cpu_int4_linear(torch.relu(gate), self.down, NO_BIAS, 64, 96, 0)


@pytest.fixture(scope="module")
def layer() -> Layer:
    torch.manual_seed(1)
    return Layer(
        *(int4.quantize(torch.randn(n, k), group_size=32) for n, k in ((50, 64), (96, 64), (64, 96)))
    )


def test_compiled_as_one_graph(layer: Layer):
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="inductor")
    ids = torch.randint(0, 50, (7,))
    torch.testing.assert_close(compiled(ids), layer(ids), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("marked", [False, True])
def test_a_changing_batch_compiles_once(layer: Layer, marked: bool):
    """``dynamic=True``, and a dimension marked dynamic as vLLM does it."""
    torch._dynamo.reset()
    graphs = []

    def counting(graph: torch.fx.GraphModule, _inputs: list) -> Callable:
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, fullgraph=True, dynamic=None if marked else True, backend=counting)
    for batch in (2, 3, 16, 17, 64, 5):
        ids = torch.randint(0, 50, (batch,))
        if marked:
            torch._dynamo.mark_dynamic(ids, 0)
        assert torch.equal(compiled(ids), layer(ids))
    assert len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes if "int4" in str(node.target)]
    assert called == ["vllm.cpu_int4_embedding", "vllm.cpu_int4_linear", "vllm.cpu_int4_linear"]


SHOW_STATUS = """
import logging, sys, torch
logging.basicConfig(format="LOG %(levelname)s %(message)s", stream=sys.stdout)
{before}
from vllm_omni import int4, ops
ops.register_vllm_ops()
print("STATUS", ops.status())
weight = int4.quantize(torch.eye(32), group_size=32)
print("VALUE", weight.linear(torch.ones(1, 32)).sum().item())
"""


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_torch_leaves_the_portable_kernels_with_one_warning():
    """A torch whose libraries are elsewhere stands for one that lacks the symbols."""
    printed = run_python(SHOW_STATUS.format(before='torch.__file__ = "elsewhere/__init__.py"'))
    reason = "libtorch_cpu.so is not loaded from elsewhere/lib"
    assert f"STATUS OpStatus(native=False, reason='{reason}')" in printed
    assert printed.count("LOG WARNING") == 1
    assert f"slow portable kernels: {reason}" in printed
    assert float(printed.split("VALUE")[1]) == pytest.approx(32, rel=0.01)


def test_settings_reach_the_native_library():
    code = SHOW_STATUS.format(before="") + "from vllm_omni import _rust\nprint('LEVEL', _rust.isa_level())"
    assert "LEVEL scalar" in run_python(code, VLLM_OMNI_EDGE_ISA="scalar")
    printed = run_python(code, VLLM_OMNI_EDGE_NATIVE="0")
    assert "STATUS OpStatus(native=False, reason='hidden by VLLM_OMNI_EDGE_NATIVE=0')" in printed
