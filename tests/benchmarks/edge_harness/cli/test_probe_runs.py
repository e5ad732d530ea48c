"""Runs, arms and cores of a probe's artifact."""

from __future__ import annotations

from typing import Any

from benchmarks.edge_harness.artifact.schema import MemoryPoint
from benchmarks.edge_harness.cli.probe_runs import (
    Child,
    SampleSet,
    arms_of,
    metrics_of,
    monitor_of,
    runs_of,
    thread_set_of,
)
from benchmarks.edge_harness.cli.process_watch import Watched

WATCHED = Watched(
    cores=[0, 1],
    threads=5,
    environment={"OMP_NUM_THREADS": "2"},
    allocator="glibc",
    openmp_runtimes=["libgomp.so.1"],
    memory=[MemoryPoint(t_s=0, rss_anon_mb=9, rss_file_mb=1, processes=1)],
    started_utc="2026-01-02T03:04:05+00:00",
    wall_s=4.0,
    load_before=[0.1, 0.1, 0.1],
    load_after=[0.9, 0.1, 0.1],
    monitor_samples=10,
    monitor_cpu_s=0.02,
)


def child(record: dict[str, Any], watched: Watched = WATCHED, **changes: Any) -> Child:
    return Child(["python", "-m", "measure"], record, watched, **changes)


def test_settings_are_no_metrics() -> None:
    record = {
        "step_ms": 5.0,
        "gemm_ms": 4,
        "ceiling_gbps": 20.0,
        "trim_mb": 3.0,
        "perplexity": 9.5,
        "threads": 2,
        "batch": 1,
        "prompt_len": 512,
        "pid": 4242,
        "watched_s": 10.0,
        "buffer_mb": 268.0,
        "memory_samples": 300,
        "sampling_cpu_s": 0.1,
        "stock": True,
        "name_s": "text",
        "inf_ms": float("inf"),
    }
    assert list(metrics_of(record)) == ["step_ms", "gemm_ms", "ceiling_gbps", "trim_mb", "perplexity"]


def test_memory_and_phases_belong_to_the_process_and_not_to_each_of_its_tests() -> None:
    phase = {"t_s": 1.0, "name": "after load", "rss_anon_mb": 50.0, "pss_anon_mb": None}
    one = child(
        {"import_s": 1.0, "phases": [phase], "verification": {"kind": "checksum", "value": "a", "of": "b"}}
    )
    whole, part = runs_of(
        [SampleSet.of("process", one), SampleSet("test", one, {"tg_tps": 3.0}, whole=False)]
    )
    assert (len(whole.memory), [found.name for found in whole.phases]) == (1, ["after load"])
    assert (part.memory, part.phases, part.metrics) == ([], [], {"tg_tps": 3.0})
    # What was computed holds for all of the process.
    assert whole.verification == part.verification
    assert part.verification is not None
    assert (part.load_before[0], part.load_after[0]) == (0.1, 0.9)
    assert "phases" not in whole.reported


def test_a_course_of_its_own_goes_before_the_one_from_outside() -> None:
    point = {"t_s": 0.5, "rss_anon_mb": 70.0, "rss_file_mb": 2.0, "rss_shmem_mb": 0.0, "processes": 2}
    (run,) = runs_of([SampleSet.of("memory-probe", child({"rss_anon_tree_mb": 70.0, "memory": [point]}))])
    assert run.memory == [MemoryPoint(t_s=0.5, rss_anon_mb=70.0, rss_file_mb=2.0, processes=2)]
    assert "memory" not in run.reported


def test_a_cold_cache_is_that_of_the_process_unless_said_otherwise() -> None:
    cold = child({"ready_s": 1.0}, cold_cache=True)
    runs = runs_of([SampleSet.of("a", cold), SampleSet("b", cold, cold.record, cold_cache=False)])
    assert [run.cold_cache for run in runs] == [True, False]


def test_an_arm_is_what_was_seen_and_else_what_the_program_says() -> None:
    process = {"allocator": "x", "openmp_runtimes": ["y"], "threads": 99, "environment": {"LD_PRELOAD": "z"}}
    seen = child({"process": process, "kernels": {"gemv": 3}})
    unseen = child({"process": process}, Watched(cores=[0]))
    first, second = arms_of([SampleSet.of("a", seen), SampleSet.of("b", unseen)], None)
    assert (first.allocator, first.openmp_runtimes, first.threads) == ("glibc", ["libgomp.so.1"], 5)
    # Variables that the program set itself are not to be seen from outside.
    assert first.env == {"LD_PRELOAD": "z"}
    assert first.kernels == {"gemv": 3}
    assert first.allowed_cores == [0, 1]
    assert (second.allocator, second.openmp_runtimes, second.threads) == ("x", ["y"], 99)


def test_cores_are_those_of_the_processes() -> None:
    both = child({"cores": [0, 1]}, Watched(cores=[0, 1, 2, 3]))
    one = child({"cores": [0]}, Watched(cores=[0, 1, 2, 3]))
    unsaid = child({}, Watched(cores=[2]))
    found = thread_set_of([SampleSet.of("t1", one), SampleSet.of("t2", both), SampleSet.of("u", unsaid)])
    assert found.cores == [0, 1, 2]
    assert found.note == "t1: 0; t2: 0-1; u: 2"
    assert thread_set_of([SampleSet.of("t1", one)]).note is None


def test_watching_is_counted_once_a_process() -> None:
    one = child({})
    cost = monitor_of([SampleSet.of("a", one), SampleSet.of("b", one)])
    assert cost is not None
    assert (cost.samples, cost.wall_s, cost.share_of_a_core) == (10, 4.0, 0.005)
    assert monitor_of([SampleSet.of("a", child({}, Watched(cores=[0])))]) is None
