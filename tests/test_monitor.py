"""Memory of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vllm_omni import monitor

TOUCHED_BYTES = 64 << 20
# The interpreter allocates as well, between two samples.
SLACK_BYTES = 8 << 20

# The grandchild holds the memory: the walk must go down two levels.
_GRANDCHILD = (
    f"import sys; b = bytearray(b'x') * {TOUCHED_BYTES}; print('ready', flush=True); sys.stdin.read()"
)
_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_GRANDCHILD!r}])"

# The root of the tree that is watched: nothing else starts processes under it, as other tests of this
# process do (the compiler's worker pool starts late).
_ROOT = f"""
import subprocess, sys
for line in sys.stdin:
    child = subprocess.Popen(
        [sys.executable, "-c", {_CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    print(child.pid, flush=True)
    sys.stdin.readline()
    child.stdin.close()
    child.wait()
    child.stdout.close()
    print("released", flush=True)
"""


class Root:
    """A process that holds memory in a grandchild on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    @contextmanager
    def holding_memory(self) -> Iterator[int]:
        """The pid of a child whose child has touched ``TOUCHED_BYTES``; both end with the block."""
        child = int(self._ask("hold"))
        try:
            yield child
        finally:
            assert self._ask("release") == "released"

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@pytest.fixture
def root() -> Iterator[Root]:
    with subprocess.Popen(
        [sys.executable, "-c", _ROOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        root = Root(process)
        with root.holding_memory():  # what the first start allocates is there before a test compares
            pass
        yield root
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def holding_memory() -> Iterator[subprocess.Popen[str]]:
    """A child whose child has touched ``TOUCHED_BYTES``; both end with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()


def test_this_process() -> None:
    memory = monitor.process_memory()
    assert (memory.pid, memory.ppid) == (os.getpid(), os.getppid())
    assert memory.unreadable is None
    assert 0 < memory.pss_anon_bytes <= memory.pss_bytes
    assert memory.rss_anon_bytes > 1 << 20
    assert memory.rss_file_bytes > 0


def test_pss_is_left_out_on_request() -> None:
    memory = monitor.process_memory(pss=False)
    assert memory.pss_bytes is None
    assert memory.unreadable is None


def test_a_grandchilds_memory_is_seen_and_disappears(root: Root) -> None:
    before = monitor.tree_memory(root.pid)
    with root.holding_memory() as child:
        during = monitor.tree_memory(root.pid)
        names = {process.pid for process in during.processes}
        assert child in names
        assert len(during.processes) == len(before.processes) + 2
        assert during.rss_anon_bytes - before.rss_anon_bytes > TOUCHED_BYTES
        assert during.pss_anon_bytes - before.pss_anon_bytes > TOUCHED_BYTES - SLACK_BYTES
    after = monitor.tree_memory(root.pid)
    assert {process.pid for process in after.processes} == {process.pid for process in before.processes}
    assert abs(after.rss_anon_bytes - before.rss_anon_bytes) < SLACK_BYTES


def test_sums_are_of_the_processes(root: Root) -> None:
    with root.holding_memory():
        tree = monitor.tree_memory(root.pid)
        assert tree.problems == []
        for field in (
            "rss_anon_bytes",
            "rss_file_bytes",
            "pss_bytes",
            "private_dirty_bytes",
            "swap_pss_bytes",
        ):
            assert getattr(tree, field) == sum(getattr(process, field) for process in tree.processes)


def test_a_process_that_is_not_there() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError, match=f"process {child.pid} does not exist"):
        monitor.process_memory(child.pid)
    with pytest.raises(ProcessLookupError):
        monitor.tree_memory(child.pid)


def test_what_may_not_be_read_is_reported() -> None:
    """``smaps_rollup`` of a process that made itself unreadable, read without root's rights."""
    code = (
        "import ctypes, sys\n"
        "assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n"
        "print(1, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        probe = (
            "import os, sys\n"
            "from vllm_omni import monitor\n"
            "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "memory = monitor.process_memory(int(sys.argv[1]))\n"
            "print(memory.unreadable, memory.pss_bytes, memory.rss_anon_bytes > 0, sep='|')\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", probe, str(child.pid)], capture_output=True, text=True, check=False
        )
        child.communicate(b"")
    expected = f"no permission to read smaps_rollup of process {child.pid}|None|True"
    assert result.stdout.strip() == expected, result.stderr


def test_trim_gives_free_heap_pages_back() -> None:
    """Blocks below glibc's mmap threshold, freed below one that is held: only a trim returns their pages."""
    code = (
        "import ctypes\n"
        "from vllm_omni import monitor\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype = ctypes.c_void_p\n"
        "libc.malloc.argtypes = [ctypes.c_size_t]\n"
        "libc.free.argtypes = [ctypes.c_void_p]\n"
        "blocks = [libc.malloc(16384) for _ in range(4096)]\n"
        "for block in blocks: ctypes.memset(block, 1, 16384)\n"
        "held = libc.malloc(16384)\n"
        "for block in blocks: libc.free(block)\n"
        "trim = monitor.trim()\n"
        "assert trim.note is None, trim.note\n"
        "assert trim.released and trim.elapsed_ns > 0, trim\n"
        "assert trim.allocator.startswith('libc'), trim.allocator\n"
        "print(trim.rss_anon_before_bytes - trim.rss_anon_after_bytes)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 32 << 20


def test_sampler_keeps_the_peak(root: Root) -> None:
    with monitor.Sampler(root.pid, interval_s=0.01, pss_interval_s=0.05) as sampler:
        before = sampler.peak
        with root.holding_memory():
            time.sleep(0.3)
        settled = sampler.sample()
    peak = sampler.peak
    assert peak.rss_anon_bytes - before.rss_anon_bytes > TOUCHED_BYTES
    assert peak.rss_anon_bytes - settled.rss_anon_bytes > TOUCHED_BYTES - SLACK_BYTES
    assert peak.pss_bytes - before.pss_bytes > TOUCHED_BYTES - SLACK_BYTES
    assert peak.processes == before.processes + 2
    assert peak.samples > 10
    assert peak.problems == ()


def test_sampler_costs_little() -> None:
    with monitor.Sampler(interval_s=0.05) as sampler:
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        time.sleep(1.0)
        share = (time.process_time() - start_cpu_s) / (time.monotonic() - start_s)
    assert sampler.peak.samples > 5
    assert share < 0.2


def test_sampler_outlives_what_it_watches() -> None:
    with holding_memory() as child, monitor.Sampler(child.pid, interval_s=0.01) as sampler:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(timeout=30)
        time.sleep(0.05)
    assert sampler.peak.rss_anon_bytes > TOUCHED_BYTES


def test_sampler_without_a_sample_has_no_peak() -> None:
    with pytest.raises(RuntimeError, match="no sample yet"):
        _ = monitor.Sampler().peak
    with pytest.raises(ValueError, match="positive"):
        monitor.Sampler(interval_s=0)


def test_records_cannot_be_changed() -> None:
    memory = monitor.process_memory(pss=False)
    with pytest.raises(AttributeError):
        memory.rss_anon_bytes = 0
    assert f"pid={os.getpid()}" in repr(memory)


def test_shared_memory_is_counted_once_by_pss() -> None:
    """A forked child shares its parent's shared mapping: ``RssShmem`` counts it twice, ``Pss_Shmem`` once."""
    code = (
        "import mmap, os, sys\n"
        "m = mmap.mmap(-1, 32 << 20); m.write(b'x' * (32 << 20))\n"
        "from vllm_omni import monitor\n"
        "r, w = os.pipe(); done = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sum(m[::4096]); os.write(w, b'1'); os.read(done[0], 1); os._exit(0)\n"
        "os.read(r, 1)\n"
        "tree = monitor.tree_memory()\n"
        "os.write(done[1], b'1'); os.waitpid(pid, 0)\n"
        "print(tree.rss_shmem_bytes >> 20, round(tree.pss_shmem_bytes / 2**20))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["64", "32"], result.stderr
