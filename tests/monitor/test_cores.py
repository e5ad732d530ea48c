"""Who runs on which core: real processes. What is computed from made-up ones: rust/procmon/tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from vllm_omni import monitor

CORE = min(os.sched_getaffinity(0))
_BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("pinned", flush=True)
while True:
    pass
"""


@contextmanager
def busy_child() -> Iterator[subprocess.Popen[str]]:
    """A child that wants all of ``CORE``. At raised priority, where that is allowed, so that what else runs
    on a shared machine does not halve its share."""
    command = [sys.executable, "-c", _BUSY, str(CORE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, child.pid, -15)
            assert child.stdout is not None
            assert child.stdout.readline() == "pinned\n"
            yield child
        finally:
            child.kill()


def test_a_busy_process_is_named_with_its_core_and_an_idle_one_is_not() -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        ) as idle,
        busy_child() as busy,
    ):
        seen = monitor.occupancy(sorted(os.sched_getaffinity(0)))
        assert idle.stdin is not None
        idle.stdin.close()
    (use,) = [process for process in seen.processes if process.pid == busy.pid and process.core == CORE]
    assert use.share > 0.5
    assert use.name.startswith("python")
    assert str(use) == f"{use.name} ({busy.pid}) {100 * use.share:.0f} % of core {CORE}"
    assert sum(process.share for process in seen.processes if process.pid == idle.pid) < 0.2
    assert seen.cores[CORE].busy > 0.5
    assert seen.cores[CORE].foreign > 0.5
    assert 0.75 <= seen.window_s < 60
    assert 0 < seen.cpu_ns < seen.window_s * 1e9


def test_own_processes_are_not_foreign() -> None:
    with busy_child() as busy:
        seen = monitor.occupancy([CORE], own_pids=[os.getpid()])
    assert busy.pid not in {process.pid for process in seen.processes}
    assert seen.cores[CORE].foreign < seen.cores[CORE].busy - 0.3


def test_a_watch_tells_own_from_foreign() -> None:
    with busy_child() as busy:
        own = monitor.OccupancyWatch([CORE], busy.pid, 0.05)
        other = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        bystander = monitor.OccupancyWatch([CORE], other.pid, 0.05)
        own.start()
        bystander.start()
        monitor.occupancy([CORE], window_s=0.75)
        of_own, of_bystander = own.stop(), bystander.stop()
        other.communicate(b"")
    assert of_own.samples > 2
    assert of_own.wall_s >= 0.5
    assert of_bystander.foreign - of_own.foreign > 0.3
    assert any(
        f"({busy.pid})" in line and line.endswith(f" of core {CORE}") for line in of_bystander.processes
    )
    assert not any(f"({busy.pid})" in line for line in of_own.processes)
    assert of_own.throttled_s >= 0
    assert 0 < of_own.cpu_ns < of_own.wall_s * 1e9


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="core 1000000 is offline or does not exist"):
        monitor.occupancy([CORE, 1_000_000])
    with pytest.raises(ValueError, match="core 1000000"):
        monitor.OccupancyWatch([1_000_000], os.getpid()).start()
    with pytest.raises(ValueError, match="window_s"):
        monitor.occupancy([CORE], window_s=-1)
    watch = monitor.OccupancyWatch([CORE], os.getpid())
    with pytest.raises(RuntimeError, match="not running"):
        watch.stop()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError):
        monitor.OccupancyWatch([CORE], child.pid).start()
