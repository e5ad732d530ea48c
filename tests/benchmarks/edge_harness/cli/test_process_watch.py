"""A real process, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.edge_harness.artifact.schema import MemoryPoint
from benchmarks.edge_harness.cli.process_watch import (
    ProcessWatch,
    disturbance,
    environment_of,
    thinned,
)
from benchmarks.edge_harness.grid.monitors import CoresSeen, MemorySeen
from tests.benchmarks.edge_harness.grid.scripted import ScriptedMonitors

CORE = min(os.sched_getaffinity(0))
# Two more threads, which may run on one core only, as an engine's may.
PINNED = f"""
import os, threading
os.sched_setaffinity(0, [{CORE}])
wait = threading.Event()
for _ in range(2):
    threading.Thread(target=wait.wait, daemon=True).start()
print("ready", flush=True)
input()
"""


@pytest.fixture
def pinned() -> Iterator[subprocess.Popen[str]]:
    environment = psutil.Process().environ() | {"OMP_NUM_THREADS": "1", "MY_API_KEY": "hidden"}
    process = subprocess.Popen(
        [sys.executable, "-c", PINNED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate("\n")


def test_cores_threads_libraries_and_variables_are_those_of_the_process(
    pinned: subprocess.Popen[str],
) -> None:
    memory = MemorySeen(points=((0.0, 1_000_000, 2_000_000, 1),), samples=3, own_cpu_s=0.25)
    cores = CoresSeen(foreign=0.2, processes=("somebody (7) 20 % of core 0",), samples=2, own_cpu_s=0.25)
    monitors = ScriptedMonitors(memory, cores)
    found = ProcessWatch(pinned.pid, [CORE], monitors).stop()
    assert found.cores == [CORE]
    assert found.threads == 3
    assert found.environment["OMP_NUM_THREADS"] == "1"
    assert "MY_API_KEY" not in found.environment
    assert found.disturbance is not None
    assert found.disturbance.foreign == 0.2
    assert found.memory == [MemoryPoint(t_s=0, rss_anon_mb=1, rss_file_mb=2, processes=1)]
    assert found.monitor_samples == 5
    assert found.monitor_cpu_s > 0.5
    # Both watches were stopped.
    assert len(monitors.stopped) == 2


def test_a_process_that_samples_itself_is_not_sampled_again(pinned: subprocess.Popen[str]) -> None:
    monitors = ScriptedMonitors(MemorySeen(samples=3))
    assert ProcessWatch(pinned.pid, [CORE], monitors, memory=False).stop().monitor_samples == 0
    assert monitors.stopped == [CoresSeen()]


def test_a_process_that_has_ended_has_the_cores_it_was_given() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    found = ProcessWatch(process.pid, [CORE], ScriptedMonitors()).stop()
    assert (found.cores, found.threads, found.environment) == ([CORE], None, {})
    assert environment_of(process.pid) == {}


@pytest.mark.parametrize(
    ("seen", "wall_s", "marked"),
    [
        (CoresSeen(foreign=0.06), 10.0, True),
        (CoresSeen(foreign=0.04), 10.0, False),
        (CoresSeen(steal=0.06), 10.0, True),
        (CoresSeen(foreign=0.04, worst_core=0.3), 10.0, True),
        (CoresSeen(throttled_s=2.5), 10.0, True),
        # A tick of the kernel's clock.
        (CoresSeen(foreign=0.2), 0.05, False),
    ],
)
def test_a_process_is_disturbed_as_a_run_is(seen: CoresSeen, wall_s: float, marked: bool) -> None:
    found = disturbance(seen, wall_s, 4)
    assert found is not None
    assert found.marked is marked
    assert disturbance(seen, 0.0, 4) is None


def test_thinning_keeps_peaks() -> None:
    points = [
        MemoryPoint(t_s=i, rss_anon_mb=500.0 if i == 777 else 1.0, rss_file_mb=0, processes=1)
        for i in range(1000)
    ]
    kept = thinned(points)
    assert len(kept) <= 400
    assert (777, 500.0) in [(point.t_s, point.rss_anon_mb) for point in kept]
    assert thinned(points[:5]) == points[:5]
