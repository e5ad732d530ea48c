"""Logits of stock vLLM on the imported 4-bit model against the fp32 reference, on every path of a token.

One engine, compiled as users run it, bf16, activations `native`. Every path scores WINDOW_TOKENS tokens of
each window, unless its test says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks.edge_harness.fidelity import kl
from benchmarks.edge_harness.fidelity.logit_capture import LogitCapture, Sink, Trace
from benchmarks.edge_harness.fidelity.text import TOPICS, WINDOW_TOKENS
from tests.model.engine import engine

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = [pytest.mark.model, pytest.mark.engine]

ALL = list(range(len(TOPICS)))
PREFIX_BLOCK_TOKENS = 128
DAMAGED_LAYER = 15


@pytest.fixture(scope="module")
def llm(model_folder: Path) -> Iterator[LLM]:
    with engine(model_folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def warm_capture(llm: LLM, windows: torch.Tensor) -> LogitCapture:
    return LogitCapture(llm, windows)


@pytest.fixture
def capture(warm_capture: LogitCapture) -> LogitCapture:
    """The engine with an empty prefix cache."""
    warm_capture.forget_prefixes()
    return warm_capture


@pytest.fixture
def measure(
    reference: kl.ReferenceLogits, floor: kl.Divergence, record_verdict: Callable[..., None]
) -> Callable[..., tuple[kl.Verdict, Trace]]:
    """`measure(path, run)` scores what `run(sink)` captures and puts it into the table."""

    def measure(path: str, run: Callable[[Sink], Trace]) -> tuple[kl.Verdict, Trace]:
        divergence = kl.Divergence(reference)
        started = time.monotonic()
        trace = run(divergence.add)
        verdict = kl.judge(path, divergence, floor)
        record_verdict(verdict, wall_s=time.monotonic() - started, steps=len(trace.steps))
        return verdict, trace

    return measure


def test_engine_is_the_product_s(llm: LLM) -> None:
    """The proof is about native kernels in a compiled model, not about a fallback."""
    from vllm.config import CompilationMode

    from vllm_omni import ops

    config = llm.llm_engine.vllm_config
    assert config.model_config.quantization == "cpu_int4"
    assert config.compilation_config.mode == CompilationMode.DYNAMO_TRACE_ONCE
    assert ops.status() == ops.OpStatus(native=True, reason="")


def test_prefill_batch_of_all(capture: LogitCapture, measure: Callable) -> None:
    verdict, trace = measure("prefill, batch 4", lambda sink: capture.prefill(ALL, sink))
    assert trace.steps == [dict.fromkeys(ALL, WINDOW_TOKENS)]
    assert verdict.tokens >= 2048
    assert verdict.failures == []


def test_prefill_one_by_one(capture: LogitCapture, measure: Callable) -> None:
    def run(sink: Sink) -> Trace:
        whole = Trace()
        for window in ALL:
            whole.steps += capture.prefill([window], sink).steps
        return whole

    verdict, trace = measure("prefill, batch 1", run)
    assert trace.batch_sizes == {1}
    assert verdict.tokens >= 2048
    assert verdict.failures == []


def test_chunked_prefill(capture: LogitCapture, measure: Callable) -> None:
    """Steps of at most 200 tokens cut the prompts at places that are no block bounds."""
    with capture.step_budget(200):
        verdict, trace = measure("chunked prefill, 200 a step", lambda sink: capture.prefill(ALL, sink))
    assert max(sum(step.values()) for step in trace.steps) <= 200
    assert all(len(trace.steps_of(window)) > 1 for window in ALL)
    assert any(0 < tokens < 200 for window in ALL for tokens in trace.steps_of(window))
    assert verdict.tokens >= 2048
    assert verdict.failures == []


def test_cached_prefix(capture: LogitCapture, measure: Callable) -> None:
    """The tokens behind a prefix whose keys and values come from the cache: 512 of each window."""

    def ignore(window: int, start: int, logits: torch.Tensor) -> None:
        pass

    capture.prefill(ALL, ignore, tokens=PREFIX_BLOCK_TOKENS + 40)
    verdict, trace = measure("prefill after a cached prefix", lambda sink: capture.prefill(ALL, sink))
    assert trace.cached_tokens == dict.fromkeys(ALL, PREFIX_BLOCK_TOKENS)
    assert trace.steps == [dict.fromkeys(ALL, WINDOW_TOKENS - PREFIX_BLOCK_TOKENS)]
    assert verdict.tokens >= 2048
    assert verdict.failures == []


def test_decode_batch_of_all(capture: LogitCapture, measure: Callable) -> None:
    verdict, trace = measure("decode, batch 4", lambda sink: capture.decode(ALL, sink))
    assert trace.steps == [dict.fromkeys(ALL, 1)] * WINDOW_TOKENS
    assert verdict.tokens >= 2048
    assert verdict.failures == []


@pytest.mark.parametrize("count", [1, pytest.param(len(ALL), marks=pytest.mark.slow)])
def test_decode_one_by_one(count: int, capture: LogitCapture, measure: Callable) -> None:
    """By default one window, which is 640 tokens; the slow run covers all of them, over 2048 tokens."""

    def run(sink: Sink) -> Trace:
        whole = Trace()
        for window in ALL[:count]:
            whole.steps += capture.decode([window], sink).steps
        return whole

    verdict, trace = measure(f"decode, batch 1, {count} windows", run)
    assert len(trace.steps) == count * WINDOW_TOKENS
    assert all(list(step.values()) == [1] for step in trace.steps)
    assert verdict.tokens == count * WINDOW_TOKENS
    assert verdict.failures == []


def test_batch_sizes_compile_nothing(capture: LogitCapture) -> None:
    """After start-up no batch size and no prompt length makes torch compile or trace anything again."""

    def ignore(window: int, start: int, logits: torch.Tensor) -> None:
        pass

    before = compilations()
    for batch in (1, 2, 3, 4):
        capture.forget_prefixes()
        capture.prefill(ALL[:batch], ignore, tokens=37 * batch)
        capture.decode(ALL[:batch], ignore, tokens=5)
    assert compilations() == before

    @torch.compile(backend="eager", dynamic=False)
    def probe(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    probe(torch.zeros(3))
    assert compilations() != before, "the counter does not count"


def compilations() -> dict[str, int]:
    """Every count of frames and graphs that Dynamo keeps."""
    from torch._dynamo.utils import counters

    return {
        f"{group}.{name}": count for group in ("frames", "stats") for name, count in counters[group].items()
    }


def test_wrong_width_is_a_runtime_error(capture: LogitCapture) -> None:
    """A layer of the live model refuses an input of another width, and works on afterwards."""
    down = capture.model.model.layers[0].mlp.down_proj
    right = torch.zeros(1, 1536, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="1536"):
        down(torch.zeros(1, 1535, dtype=torch.bfloat16))
    assert down(right)[0].shape == (1, 576)


@pytest.mark.parametrize("section", ["scales", "zeros"])
def test_damaged_weights_fail(section: str, capture: LogitCapture, measure: Callable) -> None:
    """The verdict must be able to fail: one section of one layer 10 % off, in the live engine."""
    from vllm_omni import layout

    parameter = capture.model.model.layers[DAMAGED_LAYER].mlp.down_proj.weight_packed
    intact = parameter.data
    damaged = intact.clone()
    for segment in layout.parse(damaged):
        values = segment.section(damaged, section).view(torch.float16)
        values *= 1.1
    parameter.data = damaged
    try:
        verdict, _ = measure(
            f"control: {section} of one layer 10 % off", lambda sink: capture.prefill(ALL, sink)
        )
    finally:
        parameter.data = intact
    assert verdict.failures
    assert verdict.ratio > kl.KL_RATIO_LIMIT
