"""The native monitor behind the interface, on a child that waits for the test."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from benchmarks.edge_harness.grid.monitors import NativeMonitors
from tests.benchmarks.edge_harness.grid.scripted import here, python

HOLD = "held = bytearray(b'x') * 20_000_000; print('held', flush=True); import signal; signal.pause()"
CORES = here().cores


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with 20 MB of its own."""
    child = subprocess.Popen(python(HOLD), stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def test_memory_of_a_tree(child: subprocess.Popen[bytes]) -> None:
    seen = NativeMonitors().memory(child.pid).stop()
    assert seen.samples >= 1
    assert seen.peak_anon_bytes is not None
    assert 20_000_000 < seen.peak_anon_bytes < 100_000_000
    assert seen.last_anon_bytes == seen.peak_anon_bytes
    assert (seen.threads, seen.peak_processes, seen.problems) == (1, 1, ())
    assert seen.points[0][1] == seen.peak_anon_bytes


def test_a_program_that_has_ended_has_no_memory_rather_than_none_of_it(
    child: subprocess.Popen[bytes],
) -> None:
    """Not reaped yet, as the runner leaves it while it is watched."""
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    seen = NativeMonitors().memory(child.pid).stop()
    assert (seen.samples, seen.peak_anon_bytes, seen.threads, seen.points) == (0, None, None, ())


def test_cores_beside_an_idle_child(child: subprocess.Popen[bytes]) -> None:
    """Whatever the machine does meanwhile, shares are shares."""
    watch = NativeMonitors().cores(CORES, child.pid)
    threading.Event().wait(0.05)
    seen = watch.stop()
    assert 0 <= seen.steal + seen.foreign <= 1.01
    assert seen.samples >= 1


def test_occupancy_names_what_keeps_a_core_busy() -> None:
    code = f"import os; os.sched_setaffinity(0, [{CORES[0]}]); print(flush=True)\nwhile True: pass"
    busy = subprocess.Popen(python(code), stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        foreign = NativeMonitors().occupancy(CORES, 0.3, [])
        own = NativeMonitors().occupancy(CORES, 0.3, [busy.pid])
    finally:
        busy.kill()
        busy.communicate()
    assert foreign.cores[CORES[0]].foreign + foreign.cores[CORES[0]].steal > 0.5
    assert busy.pid in {pid for pid, _, _, _ in foreign.processes}
    assert busy.pid not in {pid for pid, _, _, _ in own.processes}
