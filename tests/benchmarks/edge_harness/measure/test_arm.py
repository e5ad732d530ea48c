"""What an arm's program makes of its workload and its figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.adapters.workload import Work
from benchmarks.edge_harness.measure import arm
from benchmarks.edge_harness.measure.arm import ceiling_share, context_len, measured, parse_work, pin, warm_up
from benchmarks.edge_harness.measure.timing import MOST_WARM_UPS, Repetition
from benchmarks.edge_harness.provenance import machine
from tests.benchmarks.edge_harness.measure.test_step_bytes import LAYER_BYTES, folder
from vllm_omni.cli.machine import Machine
from vllm_omni.errors import OmniError


class FakeEngine:
    """Every decode step takes what the list says, the last entry for good; a prompt's token takes 1 ms."""

    def __init__(self, *step_ms: float) -> None:
        self.step_ms = list(step_ms)
        self.calls: list[dict[str, Any]] = []

    def repetition(self, prompt_tokens: int, steps: int, **how: Any) -> Repetition:
        self.calls.append({"prompt_tokens": prompt_tokens, "steps": steps} | how)
        step = self.step_ms.pop(0) if len(self.step_ms) > 1 else self.step_ms[0]
        first = prompt_tokens * 1e-3
        ends = tuple(first + number * step * 1e-3 for number in range(steps + 1))
        return Repetition(prompt_tokens, how.get("batch", 1), ends)


def test_a_warm_up_ends_when_it_holds_still() -> None:
    step_ms, stable = warm_up(FakeEngine(30, 12, 10, 10), Work())  # type: ignore[arg-type]
    assert stable
    assert step_ms == pytest.approx([30, 12, 10, 10])


def test_a_warm_up_that_does_not_hold_still_ends_and_is_noted() -> None:
    restless = FakeEngine(*(10.0 + 5 * (number % 2) for number in range(MOST_WARM_UPS)))
    step_ms, stable = warm_up(restless, Work())  # type: ignore[arg-type]
    assert not stable
    assert len(step_ms) == MOST_WARM_UPS
    assert arm.unstable_note(step_ms[:2]) == (
        "the warm-up did not hold still in 2 rounds: 10.00, 15.00 ms a step"
    )


def test_decode_follows_the_prompt() -> None:
    engine = FakeEngine(10)
    metrics, samples = measured(engine, Work(prompt_tokens=500, decode_tokens=5, repeats=3, depth=64))  # type: ignore[arg-type]
    assert [call["seed"] for call in engine.calls] == [1, 2, 3]
    assert all((call["prompt_tokens"], call["steps"], call["depth"]) == (500, 4, 64) for call in engine.calls)
    assert metrics["pp_tps"] == pytest.approx(1000)
    assert metrics["tg_tps"] == pytest.approx(100)
    assert len(samples["itl_ms"]) == 12


def test_on_an_empty_cache_prompt_and_decode_are_apart() -> None:
    engine = FakeEngine(10)
    metrics, _ = measured(engine, Work(prompt_tokens=500, decode_tokens=5, repeats=2, empty_cache=True))  # type: ignore[arg-type]
    assert [(call["prompt_tokens"], call["steps"]) for call in engine.calls] == [(500, 1), (1, 4)] * 2
    assert metrics["ttft_ms"] == pytest.approx(500)
    assert metrics["tg_tps"] == pytest.approx(100)


def test_the_context_holds_workload_and_verification() -> None:
    assert context_len(Work(prompt_tokens=8, decode_tokens=4)) == arm.LEAST_CONTEXT
    assert context_len(Work(prompt_tokens=512, decode_tokens=128)) > 640
    assert context_len(Work(prompt_tokens=8, decode_tokens=4, context_len=1536)) == 1536


@pytest.mark.parametrize("text", ["{", '{"prompts": 1}', '{"prompt_tokens": 100, "context_len": 50}', "[]"])
def test_a_bad_workload_is_one_line(text: str) -> None:
    with pytest.raises(OmniError):
        parse_work(text)


def test_the_share_of_the_ceiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = folder(tmp_path / "m", ["model.layers.0.q_proj.weight"])
    work = Work(prompt_tokens=90, decode_tokens=20)
    read = LAYER_BYTES + 100 * 384
    monkeypatch.setattr(machine, "last_level_cache_bytes", lambda: None)
    # As many bytes in 1 ms as the ceiling reads in half of one.
    figures, notes = ceiling_share(work, model, 1.0, 2 * read / 1e6)
    assert figures == {"weight_bytes_per_token": LAYER_BYTES, "ceiling_share": pytest.approx(0.5)}
    assert notes == []
    monkeypatch.setattr(machine, "last_level_cache_bytes", lambda: 1 << 30)
    assert "fit the last-level cache" in ceiling_share(work, model, 1.0, 1.0)[1][0]


def test_threads_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(list(cores)))
    monkeypatch.setattr(Machine, "read", classmethod(lambda cls: Machine((2, 4, 6), "", 1, "")))
    assert pin(2) == [2, 4]
    assert pinned == [[2, 4]]
    with pytest.raises(OmniError, match="--threads 4: expected 1 to 3"):
        pin(4)
    assert pin(None) == sorted(os.sched_getaffinity(0))
    assert len(pinned) == 1
