"""The compiled engine: one graph, whatever the batch size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.model.engine import engine
from tests.quantization.test_cpu_int4 import BOUNDS, errors
from tests.quantization.tiny_checkpoint import VOCABULARY, TinyCheckpoint
from vllm_omni import int4
from vllm_omni.activation import ACTIVATIONS
from vllm_omni.ops import register_vllm_ops
from vllm_omni.plugin import register_general

HIDDEN, WIDE = 32, 80


def compilations(*, dynamic: bool, activation: int) -> int:
    """How often inductor compiles a table, two layers and a head for batches of several sizes, with torch's
    guards in place: a graph that depended on the size would be compiled anew."""
    from torch._dynamo.testing import CompileCounterWithBackend

    register_vllm_ops()
    torch._dynamo.reset()
    no_bias = torch.empty(0)
    weights = {
        (n, k): int4.quantize(torch.randn(n, k), group_size=16)
        for n, k in ((VOCABULARY, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE))
    }

    def linear(x: torch.Tensor, n: int, k: int) -> torch.Tensor:
        return torch.ops.vllm.cpu_int4_linear(x, weights[n, k].data, no_bias, n, k, activation)

    def model(ids: torch.Tensor) -> torch.Tensor:
        x = torch.ops.vllm.cpu_int4_embedding(ids, weights[VOCABULARY, HIDDEN].data, VOCABULARY, HIDDEN, 2)
        y = torch.nn.functional.silu(linear(x, WIDE, HIDDEN))
        return linear(x + linear(y, HIDDEN, WIDE), VOCABULARY, HIDDEN)

    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=False)
    for tokens in (7, 2, 16, 33):
        ids = torch.arange(tokens)
        if dynamic:
            torch._dynamo.mark_dynamic(ids, 0)
        torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-4, atol=1e-4)
    return counter.frame_count


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_one_compilation_serves_every_batch_size(activation: int) -> None:
    assert compilations(dynamic=True, activation=activation) == 1


def test_the_count_sees_a_graph_per_batch_size() -> None:
    assert compilations(dynamic=False, activation=0) == 4


@pytest.mark.engine
def test_the_engine_compiles_once_and_without_a_graph_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters, get_compilation_metrics
    from vllm import SamplingParams

    def inductor_graphs() -> int:
        return sum(count for name, count in counters["inductor"].items() if name.startswith("fxgraph_cache_"))

    register_general()
    # A cache of its own: a graph that an earlier run compiled would leave nothing to count.
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    reference = TinyCheckpoint("qwen2", tied=False).write(tmp_path / "model")
    counters.clear()
    torch._dynamo.reset()
    with engine(tmp_path / "model", dtype="float32", **BOUNDS | {"enforce_eager": False}) as llm:
        assert inductor_graphs() == 1
        known = len(get_compilation_metrics())
        # vLLM drops torch's guards: a graph of one batch size would answer wrongly for the others.
        assert max(errors(llm, reference)) < 2e-3
        # vLLM compiles a helper of its sampler for the first log-probabilities; nothing of the model.
        helpers = [Path(record.co_filename).parent for record in get_compilation_metrics()[known:]]
        assert all(folder.match("vllm/v1/sample/ops") for folder in helpers), helpers
        before = inductor_graphs()
        sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
        for batch, length in ((1, 1), (2, 5), (3, 17), (4, 30)):
            prompt = {"prompt_token_ids": list(range(2, 2 + length))}
            llm.generate([prompt] * batch, sampling, use_tqdm=False)
        assert inductor_graphs() == before
        assert not counters["graph_break"]
    assert VOCABULARY % 64, "the padded vocabulary is part of this test"
