"""The standard workload on an engine that is a counter, with a clock that the engine moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from benchmarks.edge_harness.adapters import process_memory, workload
from benchmarks.edge_harness.adapters.workload import EMPTY_CACHE_NOTE, Phases, Work
from benchmarks.edge_harness.measure.verification_text import ids_digest, verification_ids
from benchmarks.edge_harness.metrics import METRICS
from benchmarks.edge_harness.spec import Workload

STATUS = "RssAnon:\t    1000 kB\nRssFile:\t     500 kB\nRssShmem:\t       0 kB\nVmSwap:\t       0 kB\n"
PREFILL_S_PER_TOKEN, STEP_S = 0.001, 0.01


class CountingEngine:
    """Takes a millisecond a prompt token and ten a step, and writes down what it is asked."""

    vocabulary_size = 1000
    step_logprob = -2.0

    def __init__(self) -> None:
        self.now = 0.0
        self.cached: list[int] = []
        self.prompts: list[tuple[int, ...]] = []
        self.cached_at_prefill: list[int] = []
        self.deepest = 0

    def clock(self) -> float:
        return self.now

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def reset(self) -> None:
        self.cached = []

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.cached = self.cached or [0] * len(prompts)
        for sequence, ids in enumerate(prompts):
            self.now += PREFILL_S_PER_TOKEN * len(ids)
            self.cached[sequence] += len(ids)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        self.cached_at_prefill.append(self.cached[0] if self.cached else 0)
        self.prompts += [tuple(ids) for ids in prompts]
        self.fill(prompts)
        return [7] * len(prompts)

    def step(self, tokens: Sequence[int]) -> list[int]:
        assert list(tokens) == [7] * len(self.cached)
        self.now += STEP_S
        self.cached = [count + 1 for count in self.cached]
        self.deepest = max(self.deepest, self.cached[0])
        return [7] * len(self.cached)

    def prompt_logprobs(self, ids: Sequence[int]) -> list[float] | None:
        return [-2.0] * (len(ids) - 1)

    def step_logprobs(self, ids: Sequence[int]) -> list[float] | None:
        return [self.step_logprob] * (len(ids) - 1)


def phases() -> Phases:
    ages = iter(range(1, 100))
    texts = {"status": STATUS, "smaps_rollup": "Pss_Anon:\t     900 kB\n"}
    return Phases([], age_s=lambda: float(next(ages)), read=lambda name: texts.get(name, ""))


def measured(work: Work) -> tuple[dict, CountingEngine]:
    engine = CountingEngine()

    def load(mark: Callable[[str], None]) -> CountingEngine:
        mark("after import")
        mark("after load")
        return engine

    return workload.measure(load, work, clock=engine.clock, phases=phases()), engine


def test_work_is_the_spec_without_pydantic():
    theirs = {name: info.default for name, info in Workload.model_fields.items()}
    assert {name: getattr(Work(), name) for name in Work.names()} == theirs
    text = Workload(prompt_tokens=3, batch=2).model_dump_json(exclude_none=True)
    assert Work.from_json(text) == Work(prompt_tokens=3, batch=2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"promt_tokens": 3}, "promt_tokens: expected one of"),
        (
            {"context_len": 600, "prompt_tokens": 512, "decode_tokens": 128},
            "context_len 600: expected at least 640",
        ),
    ],
)
def test_work_that_makes_no_sense_is_refused(content: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Work.from_json(json.dumps(content))


def test_every_metric_comes_from_one_process():
    record, engine = measured(Work(prompt_tokens=100, decode_tokens=11, repeats=3))
    assert record["pp_tps"] == pytest.approx(1 / PREFILL_S_PER_TOKEN)
    assert record["ttft_ms"] == pytest.approx(100.0)
    assert record["tg_tps"] == pytest.approx(1 / STEP_S)
    assert record["step_ms"] == record["itl_ms_p50"] == record["itl_ms_p99"] == pytest.approx(10.0)
    assert len(record["samples"]["tg_tps"]) == 3
    assert len(record["samples"]["itl_ms"]) == 3 * 10
    assert record["rss_anon_tree_mb"] == record["rss_anon_at_context_mb"] == pytest.approx(1.024)
    assert record["pss_anon_tree_mb"] == pytest.approx(0.9216)
    names = [phase["name"] for phase in record["phases"]]
    assert names == [
        *("before import", "after import", "after load", "after warm-up", "at context", "after trim"),
    ]
    ids = verification_ids(engine.encode)
    assert record["verification"] == {"kind": "logprob", "value": -2.0, "of": ids_digest(ids)}
    assert record["notes"] == []
    # The clock of the phases: before import, after import, after load, then the first token.
    assert record["ready_s"] == 4.0
    numbers = {name for name, value in record.items() if isinstance(value, float)}
    assert numbers - {"rss_anon_after_trim_mb"} <= set(METRICS)


def test_no_prompt_comes_twice_and_each_is_exact():
    _, engine = measured(Work(prompt_tokens=64, decode_tokens=4, repeats=3))
    exact = [ids for ids in engine.prompts if len(ids) == 64]
    assert len(exact) == len(set(exact)) >= 3 + 3
    assert all(workload.FIRST_PROMPT_ID <= token < 1000 for ids in exact for token in ids)


def test_depth_is_in_the_cache_and_off_the_clock():
    record, engine = measured(Work(prompt_tokens=50, decode_tokens=4, depth=200, repeats=2))
    # Three rounds of warm-up at the same depth, then what is measured.
    assert engine.cached_at_prefill.count(200) == 3 + 2
    assert record["pp_tps"] == pytest.approx(1 / PREFILL_S_PER_TOKEN)


def test_a_batch_counts_the_tokens_of_all_its_sequences():
    record, _ = measured(Work(prompt_tokens=10, decode_tokens=5, batch=4))
    assert record["tg_tps"] == pytest.approx(4 / STEP_S)
    assert record["pp_tps"] == pytest.approx(1 / PREFILL_S_PER_TOKEN)
    assert record["step_ms"] == pytest.approx(10.0)


def test_an_empty_cache_is_said_and_measured_after_one_token():
    record, engine = measured(Work(prompt_tokens=100, decode_tokens=5, repeats=2, empty_cache=True))
    assert record["notes"] == [EMPTY_CACHE_NOTE]
    assert sum(len(ids) == 1 for ids in engine.prompts) >= 2
    assert record["ttft_ms"] == pytest.approx(100.0)
    assert record["tg_tps"] == pytest.approx(1 / STEP_S)
    assert len(record["samples"]["itl_ms"]) == 2 * 4


def test_the_context_is_filled_to_its_end_for_the_memory_mark():
    work = Work(prompt_tokens=10, decode_tokens=4, context_len=300)
    _, engine = measured(work)
    assert engine.deepest == 299


def test_a_warm_up_that_does_not_settle_is_noted():
    engine = CountingEngine()
    steps = iter(range(1, 10_000))

    def step(tokens: Sequence[int]) -> list[int]:
        engine.now += next(steps)
        engine.cached = [count + 1 for count in engine.cached]
        return [7] * len(engine.cached)

    engine.step = step  # type: ignore[method-assign]
    work = Work(prompt_tokens=4, decode_tokens=4)
    record = workload.measure(lambda mark: engine, work, clock=engine.clock, phases=phases())
    assert record["warm_up_rounds"] == workload.MOST_WARM_UPS
    assert "did not hold still" in record["notes"][0]


def test_a_prompt_that_does_not_settle_is_waited_for_too():
    engine = CountingEngine()
    slower = iter(range(1, 10_000))
    fill = engine.fill

    def slow_fill(prompts: Sequence[Sequence[int]]) -> None:
        fill(prompts)
        engine.now += next(slower)

    engine.fill = slow_fill  # type: ignore[method-assign]
    warmed = workload.warm_up(engine, Work(prompt_tokens=100, decode_tokens=10), engine.clock)
    assert len(warmed.ttft_ms) == workload.MOST_WARM_UPS
    assert "ms to the first token" in warmed.notes[0]
    assert warmed.step_ms == pytest.approx([10.0] * workload.MOST_WARM_UPS)


def test_paths_that_disagree_end_the_run():
    engine = CountingEngine()
    engine.step_logprob = -3.62
    with pytest.raises(ValueError, match=r"prefill and decode disagree: -2\.0000 vs -3\.6200"):
        workload.measure(lambda mark: engine, Work(decode_tokens=4), clock=engine.clock, phases=phases())


def test_a_path_that_cannot_be_asked_is_noted():
    engine = CountingEngine()
    engine.step_logprobs = lambda ids: None  # type: ignore[method-assign]
    record = workload.measure(lambda mark: engine, Work(decode_tokens=4), clock=engine.clock, phases=phases())
    assert record["verification"]["value"] == -2.0
    assert "not verified for decode" in record["notes"][0]


def test_a_peak_that_was_not_watched_is_no_peak():
    now = iter((0.0, 0.1, 0.5))
    seen = process_memory.Peak(read=lambda name: STATUS, clock=lambda: next(now))
    for _ in range(2):
        seen.sample()
    assert workload._peak(seen) == ({"peak_rss_anon_tree_mb": pytest.approx(1.024)}, [])
    seen.sample()
    assert seen.longest_gap_s == pytest.approx(0.4)
    figures, notes = workload._peak(seen)
    assert figures == {}
    assert "held the interpreter's lock for up to 0.4 s" in notes[0]


def test_an_engine_with_children_is_refused():
    marks = phases()
    read = marks.read
    marks.read = lambda name: "123 " if name.endswith("children") else read(name)
    engine = CountingEngine()
    with pytest.raises(RuntimeError, match="started processes"):
        workload.measure(lambda mark: engine, Work(), clock=engine.clock, phases=marks)


def test_a_thread_that_ends_meanwhile_has_no_children():
    def read(name: str) -> str:
        raise FileNotFoundError(name)

    assert process_memory.has_children(read) is False
    assert process_memory.has_children(lambda name: "") is False
    assert process_memory.has_children(lambda name: "12 13 ") is True
