"""What processes hold and who runs where. Linux ``/proc``; memory in bytes.

>>> from vllm_omni import monitor
>>> monitor.tree_memory().rss_anon_bytes > 0
True

**Memory**: :func:`process_memory` and :func:`tree_memory` at one moment, :class:`TreeSampler` over time,
:func:`smaps_ledger` by mapping, :func:`trim`. What the numbers mean, and which kernel field each comes from:

- ``rss_anon_bytes`` (``RssAnon``): resident anonymous memory. This is what a process *costs*; mapped
  weights are in ``rss_file_bytes`` and can be dropped and read again. Pages shared since a fork count in
  parent and child both.
- ``rss_shmem_bytes`` (``RssShmem``): shared memory; summed over a tree it counts each sharer in full.
- ``pss_bytes``, ``pss_anon_bytes``, … (``Pss``…): every page divided by its number of sharers, so a sum
  over a tree counts nothing twice. ``None`` when any process of the tree could not be read (``problems``,
  or ``unreadable`` of the one process, says why), and for parts that the kernel lacks (before Linux 5.4).

**Cores**: :func:`occupancy` before a measurement, :class:`OccupancyWatch` during one. What a core did is in
``/proc/stat``, what a task used and where it ran last in its ``stat``; both in clock ticks of 10 ms.

>>> sorted(monitor.occupancy([0], window_s=0.05).cores)
[0]

Errors are ``OSError``: ``ProcessLookupError`` when the process does not exist. Everything that waits or reads
lets other Python threads run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from vllm_omni import _rust
from vllm_omni._rust import (
    CgroupLimits,
    CoreUse,
    Mapping,
    Occupancy,
    OccupancyWatch,
    ProcessMemory,
    ProcessUse,
    TreeMemory,
    TreeSampler,
    TreeSamples,
    TrimResult,
    WatchResult,
)

__all__ = [
    "CgroupLimits",
    "CoreUse",
    "Mapping",
    "Occupancy",
    "OccupancyWatch",
    "Peak",
    "ProcessMemory",
    "ProcessUse",
    "Sampler",
    "TreeMemory",
    "TreeSampler",
    "TreeSamples",
    "TrimResult",
    "WatchResult",
    "bind_memory_to_nodes",
    "cgroup_limits",
    "cgroup_throttled_ns",
    "occupancy",
    "process_memory",
    "process_start_ticks",
    "smaps_ledger",
    "tree_memory",
    "trim",
    "unbind_memory",
]


def process_memory(pid: int | None = None, *, pss: bool = True) -> ProcessMemory:
    """Memory of process ``pid`` (default: this one).

    ``pss=False`` leaves out ``smaps_rollup``, which costs milliseconds per GiB of mapped memory.
    """
    return _rust.process_memory(os.getpid() if pid is None else pid, pss)


def tree_memory(pid: int | None = None, *, pss: bool = True) -> TreeMemory:
    """Memory of process ``pid`` (default: this one) and of all its descendants.

    A process that ends while the tree is read is counted in ``vanished``; one that cannot be read is listed
    in ``problems``.
    """
    return _rust.tree_memory(os.getpid() if pid is None else pid, pss)


def trim() -> TrimResult:
    """Give this process's free heap pages back to the kernel (``malloc_trim(0)``).

    ``note`` says when that can have had no effect: another allocator than glibc's is in use.
    """
    return _rust.malloc_trim()


def smaps_ledger(pid: int | None = None) -> list[Mapping]:
    """Every mapping of process ``pid`` (default: this one), summed by name, largest ``rss_bytes`` first.

    From ``/proc/<pid>/smaps``: milliseconds per GiB, and ptrace rights. ``anon_bytes`` are pages that belong
    to no file, such as written pages of a private file mapping; ``[heap]`` is glibc's first arena alone,
    further arenas and thread stacks are ``[anon]``.
    """
    return _rust.smaps_ledger(os.getpid() if pid is None else pid)


def process_start_ticks(pid: int | None = None) -> int:
    """When process ``pid`` began (default: this one), in clock ticks since boot: field 22 of its ``stat``.

    With the pid it identifies a process for as long as the machine runs; the pid alone is used again.
    """
    return _rust.process_start_ticks(os.getpid() if pid is None else pid)


def occupancy(cores: Sequence[int], window_s: float = 0.75, own_pids: Sequence[int] = ()) -> Occupancy:
    """What ``cores`` did over the next ``window_s``, and which processes ran there.

    Processes of ``own_pids`` and their descendants are own: they are in no list and not in ``foreign``. A
    task counts on the core it ran on last, looked at four times a second. Raises ``ValueError`` for a core
    that is offline or absent.
    """
    return _rust.occupancy(cores, window_s, own_pids)


def cgroup_limits(pid: int | None = None) -> CgroupLimits:
    """What control groups (version 1 or 2) allow process ``pid``, the smallest on the way up to the mount."""
    return _rust.cgroup_limits(os.getpid() if pid is None else pid)


def cgroup_throttled_ns(pid: int | None = None) -> int | None:
    """Time that the control groups of process ``pid`` waited for their CPU quota since they exist, summed
    over cores; ``None`` where no group accounts for it."""
    return _rust.cgroup_throttled_ns(os.getpid() if pid is None else pid)


def bind_memory_to_nodes(nodes: Sequence[int]) -> None:
    """Take the calling thread's future pages from these memory nodes alone (``MPOL_BIND``).

    What it starts afterwards inherits that, across ``exec`` as well. Pages that are there stay. ``OSError``:
    ``EINVAL`` for no node or one this machine lacks, ``EPERM`` where a sandbox forbids the call.
    """
    _rust.bind_memory_to_nodes(nodes)


def unbind_memory() -> None:
    """Give the calling thread the default memory policy again."""
    _rust.unbind_memory()


@dataclass(frozen=True)
class Peak:
    """The most that a :class:`Sampler` saw. Each maximum may belong to another moment."""

    rss_anon_bytes: int
    """Sum of ``RssAnon`` over the tree."""
    pss_bytes: int | None
    """Sum of ``Pss`` over the tree; ``None`` when no sample had it."""
    pss_anon_bytes: int | None
    """Sum of ``Pss_Anon`` over the tree; ``None`` when no sample had it."""
    processes: int
    """Processes in the tree."""
    samples: int
    """How many samples the maxima are over."""
    vanished: int
    """Processes that ended while a sample was taken, over all samples."""
    problems: tuple[str, ...]
    """What could not be read, each reason once."""


class Sampler:
    """Watch the memory of a process tree from a background thread, and keep the peak.

    >>> with Sampler(interval_s=0.01) as sampler:
    ...     work = bytearray(1 << 20)
    >>> sampler.peak.rss_anon_bytes > 0
    True

    ``RssAnon`` is sampled every ``interval_s``, ``Pss`` every ``pss_interval_s`` (``None``: never). Sampling
    runs without the GIL; entering and leaving take one full sample each, so a peak always exists. Whatever
    rises and falls between two samples is not seen.
    """

    def __init__(
        self, pid: int | None = None, *, interval_s: float = 0.05, pss_interval_s: float | None = 1.0
    ) -> None:
        if interval_s <= 0 or (pss_interval_s is not None and pss_interval_s <= 0):
            raise ValueError(f"intervals must be positive: {interval_s=}, {pss_interval_s=}")
        self._pid = os.getpid() if pid is None else pid
        self._interval_s = interval_s
        self._pss_interval_s = pss_interval_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._peak: Peak | None = None
        self._thread: threading.Thread | None = None

    @property
    def peak(self) -> Peak:
        """The peak so far. Raises ``RuntimeError`` before the first sample."""
        with self._lock:
            if self._peak is None:
                raise RuntimeError("no sample yet: use the sampler in a with statement")
            return self._peak

    def sample(self, *, pss: bool = True) -> TreeMemory:
        """Take one sample now, in the calling thread, and return it."""
        tree = tree_memory(self._pid, pss=pss)
        with self._lock:
            self._peak = _higher(self._peak, tree)
        return tree

    def __enter__(self) -> Self:
        self._stop.clear()
        self.sample(pss=self._pss_interval_s is not None)
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            self.sample(pss=self._pss_interval_s is not None)
        except ProcessLookupError:
            # The watched process has ended: what was seen of it stands.
            return

    def _run(self) -> None:
        next_pss_s = time.monotonic() + (self._pss_interval_s or 0.0)
        while not self._stop.wait(self._interval_s):
            pss = self._pss_interval_s is not None and time.monotonic() >= next_pss_s
            try:
                self.sample(pss=pss)
            except ProcessLookupError:
                return
            if pss and self._pss_interval_s is not None:
                next_pss_s = time.monotonic() + self._pss_interval_s


def _higher(peak: Peak | None, tree: TreeMemory) -> Peak:
    reasons = tuple(why for _, why in tree.problems)
    if peak is None:
        peak = Peak(0, None, None, 0, 0, 0, ())
    return Peak(
        rss_anon_bytes=max(peak.rss_anon_bytes, tree.rss_anon_bytes),
        pss_bytes=_max(peak.pss_bytes, tree.pss_bytes),
        pss_anon_bytes=_max(peak.pss_anon_bytes, tree.pss_anon_bytes),
        processes=max(peak.processes, len(tree.processes)),
        samples=peak.samples + 1,
        vanished=peak.vanished + tree.vanished,
        problems=tuple(dict.fromkeys((*peak.problems, *reasons))),
    )


def _max(a: int | None, b: int | None) -> int | None:
    return max((value for value in (a, b) if value is not None), default=None)
