"""What an arm's program makes of its workload and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.adapters.workload import LEAST_CONTEXT, Work
from benchmarks.edge_harness.measure import arm, forced_decode
from benchmarks.edge_harness.measure import engine as engine_module
from benchmarks.edge_harness.measure.arm import ceiling_share, context_len, measured, parse_work, warm_up
from benchmarks.edge_harness.measure.memory_marks import MemoryMarks
from benchmarks.edge_harness.measure.timing import MOST_WARM_UPS, Repetition
from benchmarks.edge_harness.provenance import machine
from tests.benchmarks.edge_harness.measure.test_step_bytes import LAYER_BYTES, folder
from vllm_omni import monitor
from vllm_omni.errors import OmniError


class FakeEngine:
    """Every decode step takes what the list says, the last entry for good; a prompt's token takes 1 ms."""

    def __init__(self, *step_ms: float, prompt_ms: Sequence[float] = ()) -> None:
        self.step_ms = list(step_ms)
        self.prompt_ms = list(prompt_ms)
        self.calls: list[dict[str, Any]] = []

    def repetition(self, prompt_tokens: int, steps: int, **how: Any) -> Repetition:
        self.calls.append({"prompt_tokens": prompt_tokens, "steps": steps} | how)
        step = self.step_ms.pop(0) if len(self.step_ms) > 1 else self.step_ms[0]
        first = prompt_tokens * 1e-3
        if self.prompt_ms:
            first = (self.prompt_ms.pop(0) if len(self.prompt_ms) > 1 else self.prompt_ms[0]) * 1e-3
        ends = tuple(first + number * step * 1e-3 for number in range(steps + 1))
        return Repetition(prompt_tokens, how.get("batch", 1), ends)


def test_a_warm_up_ends_when_it_holds_still() -> None:
    engine = FakeEngine(30, 12, 10, 10)
    done = warm_up(engine, Work(prompt_tokens=300, depth=64))  # type: ignore[arg-type]
    assert done.stable
    assert done.notes == []
    assert done.samples["warm_up_step_ms"] == pytest.approx([30, 12, 10, 10])
    # The prompt that is measured, at its depth.
    assert all((call["prompt_tokens"], call["depth"]) == (300, 64) for call in engine.calls)


def test_a_prompt_that_is_still_getting_faster_is_waited_for() -> None:
    engine = FakeEngine(10, prompt_ms=[900, 500, 200, 100, 100])
    assert warm_up(engine, Work()).ttft_ms == pytest.approx([900, 500, 200, 100, 100])  # type: ignore[arg-type]
    # Of a workload of a single token's prompt the steps alone are looked at.
    engine = FakeEngine(10, prompt_ms=[900, 500, 200, 100, 100])
    assert len(warm_up(engine, Work(prompt_tokens=1)).step_ms) == 3  # type: ignore[arg-type]
    # Of one that measures the prompt alone, the prompt.
    restless = FakeEngine(*(10.0 + 5 * (number % 2) for number in range(MOST_WARM_UPS)), prompt_ms=[7])
    assert len(warm_up(restless, Work(decode_tokens=2)).step_ms) == 3  # type: ignore[arg-type]


def test_on_an_empty_cache_the_warm_up_runs_both_that_are_measured() -> None:
    engine = FakeEngine(10)
    done = warm_up(engine, Work(prompt_tokens=500, empty_cache=True))  # type: ignore[arg-type]
    assert done.stable
    calls = [(call["prompt_tokens"], call["steps"]) for call in engine.calls]
    assert calls == [(500, 1), (1, 8)] * 3


def test_a_warm_up_that_does_not_hold_still_ends_and_is_noted() -> None:
    restless = FakeEngine(*(10.0 + 5 * (number % 2) for number in range(MOST_WARM_UPS)))
    done = warm_up(restless, Work())  # type: ignore[arg-type]
    assert not done.stable
    assert len(done.step_ms) == MOST_WARM_UPS
    (note,) = done.notes
    assert note.startswith(f"the warm-up did not hold still in {MOST_WARM_UPS} rounds: 10.00, 15.00, 10.00")
    assert note.endswith("512.0 ms to the first token")


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
    assert context_len(Work(prompt_tokens=8, decode_tokens=4)) == LEAST_CONTEXT
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
    figures, notes = ceiling_share(work, model, 1.0, 1.0)
    assert figures == {"weight_bytes_per_token": LAYER_BYTES}
    assert "fit the last-level cache" in notes[0]


class WholeEngine(FakeEngine):
    """An engine as the program uses it; ``log`` gets what was done, in order."""

    log: list[str]

    def __init__(self, arguments: dict[str, Any], mark: Any) -> None:
        super().__init__(10)
        self.times_s = {"init_s": 1.0}

    def random_ids(self, count: int, seed: int) -> list[int]:
        return [1] * count

    def run(self, ids: Sequence[int], tokens: int) -> None:
        self.log.append("first token")

    def repetition(self, prompt_tokens: int, steps: int, **how: Any) -> Repetition:
        at_end = how.pop("at_end", None)
        done = super().repetition(prompt_tokens, steps, **how)
        if at_end is not None:
            at_end()
        return done

    def process_facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.log.append("close")


class LoggedMarks(MemoryMarks):
    log: list[str]

    def mark(self, name: str) -> None:
        self.log.append(name)
        super().mark(name)


@dataclass
class TrimDone:
    rss_anon_before_bytes: int
    rss_anon_after_bytes: int
    note: str | None


class Emitted:
    def __init__(self) -> None:
        self.record: dict[str, Any] = {}

    def emit(self, record: dict[str, Any]) -> None:
        self.record = record


@pytest.fixture
def whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, Any]]:
    """What a run did, in order, and its record."""
    log: list[str] = []
    for owner in (WholeEngine, LoggedMarks):
        monkeypatch.setattr(owner, "log", log, raising=False)

    def looked(name: str, result: Any) -> Any:
        def look(*args: Any) -> Any:
            log.append(name)
            return result

        return look

    monkeypatch.setattr(engine_module, "InProcessEngine", WholeEngine)
    monkeypatch.setattr(arm, "MemoryMarks", LoggedMarks)
    monkeypatch.setattr(arm, "import_engine", lambda marks: 0.5)
    monkeypatch.setattr(arm, "thread_count", lambda: 1)
    monkeypatch.setattr(arm, "what_ran_record", looked("what ran", ({"kernels": {}, "ran": {}}, ["seen"])))
    monkeypatch.setattr(arm, "verification", looked("verification", {"verification": {"value": -1.0}}))
    trimmed = TrimDone(3 << 20, 2 << 20, "no glibc")
    monkeypatch.setattr(monitor, "trim", looked("trim", trimmed))
    model = folder(tmp_path / "m", ["model.layers.0.q_proj.weight"], max_position_embeddings=512)
    options = arm.parser().parse_args(
        ["--model", str(model), "--no-ceiling", "--workload", '{"prompt_tokens": 16, "decode_tokens": 4}']
    )
    options.cores = [0]
    output = Emitted()
    arm.run(options, output)  # type: ignore[arg-type]
    return log, output.record


def test_memory_is_read_before_the_engine_is_looked_at(
    whole_run: tuple[list[str], dict[str, Any]],
) -> None:
    log, record = whole_run
    assert log == [
        "before import",
        "first token",
        "after warm-up",
        "at context",
        "trim",
        "after trim",
        "what ran",
        "verification",
        "close",
    ]
    assert record["trim_mb"] == pytest.approx(1.048576)
    assert record["notes"] == ["no glibc", "seen"]
    assert record["cores"] == [0]
    assert record["model"]["id"] == "m"


@dataclass
class Paths:
    """An engine that is asked for log-probabilities."""

    prefill: float

    def encode(self, text: str) -> list[int]:
        return list(range(100))

    def prefill_logprobs(self, ids: Sequence[int]) -> list[float]:
        return [self.prefill] * (len(ids) - 1)


def test_prefill_and_decode_that_disagree_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced_decode, "decode_logprobs", lambda engine, ids: [-2.0] * (len(ids) - 1))
    agreed = arm.verification(Paths(-2.01))  # type: ignore[arg-type]
    assert agreed["verification"]["value"] == pytest.approx(-2.005)
    with pytest.raises(OmniError, match=r"prefill and decode disagree: -2\.0300 vs -2\.0000"):
        arm.verification(Paths(-2.03))  # type: ignore[arg-type]
