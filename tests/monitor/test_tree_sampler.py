"""The Rust sampler on real processes. What it computes from made-up ones: rust/procmon/tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from vllm_omni import monitor

TOUCHED_BYTES = 64 << 20
# Holds the memory until a line comes, then until the end of stdin without it.
_CHILD = f"""
import mmap, sys
memory = mmap.mmap(-1, {TOUCHED_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x" * {TOUCHED_BYTES})
print("held", flush=True)
sys.stdin.readline()
memory.close()
print("freed", flush=True)
sys.stdin.read()
"""


def test_a_child_that_allocates_and_frees() -> None:
    """An interval of hours: one sample at the start, one at the end, and the test decides when they are."""

    def sampler() -> monitor.TreeSampler:
        return monitor.TreeSampler(os.getpid(), interval_s=10_000)

    before = sampler()
    before.start()
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        held = before.stop()
        during = sampler()
        during.start()
        child.stdin.write("\n")
        assert child.stdout.readline() == "freed\n"
        freed = during.stop()
    assert held.samples == freed.samples == 2
    assert held.last_processes == held.peak_processes >= 2
    first = held.points[0]
    assert held.last_rss_anon_bytes > TOUCHED_BYTES
    assert held.peak_rss_anon_bytes == max(point[1] for point in held.points) >= first[1]
    assert freed.peak_rss_anon_bytes - freed.last_rss_anon_bytes > TOUCHED_BYTES - (8 << 20)
    assert held.problems == freed.problems == []
    assert held.cpu_time_s > 0
    assert held.max_threads >= 2


def test_samples_come_by_themselves() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as child:
        sampler = monitor.TreeSampler(child.pid, interval_s=0.002, keep_every_s=0.01)
        sampler.start()
        while (seen := sampler.so_far()).samples < 30:
            time.sleep(0.005)
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        while sampler.so_far().vanished == 0:
            time.sleep(0.005)
        samples = sampler.stop()
    assert samples.samples >= seen.samples
    assert samples.last_rss_anon_bytes > 0
    assert samples.vanished == 1
    assert 0 < samples.cpu_ns < samples.wall_s * 1e9
    times = [point[0] for point in samples.points]
    assert times == sorted(times)
    assert len(times) >= 2


def test_a_process_that_is_not_there_or_not_the_one_meant() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError, match=f"process {child.pid} does not exist"):
        monitor.TreeSampler(child.pid).start()
    start = monitor.process_start_ticks()
    with pytest.raises(ProcessLookupError):
        monitor.TreeSampler(os.getpid(), start_ticks=start + 1).start()
    sampler = monitor.TreeSampler(os.getpid(), start_ticks=start)
    sampler.start()
    assert sampler.stop().samples >= 1


def test_wrong_use_is_an_error() -> None:
    with pytest.raises(ValueError, match="interval_s: expected a positive number, got 0"):
        monitor.TreeSampler(os.getpid(), interval_s=0)
    with pytest.raises(ValueError, match="keep_every_s"):
        monitor.TreeSampler(os.getpid(), keep_every_s=float("nan"))
    sampler = monitor.TreeSampler(os.getpid())
    with pytest.raises(RuntimeError, match="not running"):
        sampler.stop()
    sampler.start()
    with pytest.raises(RuntimeError, match="running already"):
        sampler.start()
    sampler.stop()
    with pytest.raises(RuntimeError, match="not running"):
        sampler.so_far()
