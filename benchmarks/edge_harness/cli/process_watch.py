"""What a probe's process was like while it ran: seen from outside, for any program.

The command that starts a measuring program computes nothing itself, so its own cores, threads and libraries
say nothing of the figures.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.edge_harness.artifact.schema import Disturbance, MemoryPoint
from benchmarks.edge_harness.grid.disturbance import disturbance
from benchmarks.edge_harness.grid.library_watch import LibraryWatch
from benchmarks.edge_harness.grid.monitors import MemorySeen, Monitors
from benchmarks.edge_harness.grid.runner import MEMORY_POINTS
from benchmarks.edge_harness.provenance.load import now_utc
from benchmarks.edge_harness.provenance.probe import affinity_of
from benchmarks.edge_harness.provenance.scrub import scrub
from vllm_omni import monitor, settings

_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 0.5
_MB = 1e6


@dataclass(frozen=True)
class Watched:
    """``cores``: where the threads of the tree were allowed to run when there were most of them. ``threads``
    is the most at once. ``environment`` is what the program was started with, allow-listed."""

    cores: list[int]
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    allocator: str | None = None
    openmp_runtimes: list[str] = field(default_factory=list)
    disturbance: Disturbance | None = None
    memory: list[MemoryPoint] = field(default_factory=list)
    started_utc: str = ""
    wall_s: float = 0.0
    load_before: list[float] = field(default_factory=list)
    load_after: list[float] = field(default_factory=list)
    monitor_samples: int = 0
    monitor_cpu_s: float = 0.0


class ProcessWatch:
    """Watches process ``pid`` and its descendants from its construction to :meth:`stop`, which must come
    before the process is reaped. ``cores`` are those under test. ``memory``: also sample its memory."""

    def __init__(self, pid: int, cores: Sequence[int], monitors: Monitors, *, memory: bool = True) -> None:
        self._pid = pid
        self._cores = sorted(cores)
        self._started_utc, self._start = now_utc(), time.monotonic()
        self._load_before = _load()
        self._environment: dict[str, str] = {}
        self._seen_cores: set[int] = set()
        self._threads = 0
        self._own_cpu_s = 0.0
        self._stop = threading.Event()
        self._core_watch = monitors.cores(self._cores, pid)
        self._memory_watch = monitors.memory(pid) if memory else None
        self._libraries = LibraryWatch(pid)
        self._thread = threading.Thread(target=self._run, name="process-watch", daemon=True)
        self._thread.start()

    def stop(self) -> Watched:
        wall_s = time.monotonic() - self._start
        self._stop.set()
        self._thread.join()
        seen_cores, libraries = self._core_watch.stop(), self._libraries.stop()
        memory = self._memory_watch.stop() if self._memory_watch is not None else MemorySeen()
        return Watched(
            cores=sorted(self._seen_cores) or self._cores,
            threads=max(self._threads, memory.threads or 0) or None,
            environment=self._environment,
            allocator=libraries.allocator,
            openmp_runtimes=libraries.openmp_runtimes,
            disturbance=disturbance(seen_cores, wall_s, len(self._cores)),
            memory=memory_points(memory),
            started_utc=self._started_utc,
            wall_s=wall_s,
            load_before=self._load_before,
            load_after=_load(),
            monitor_samples=seen_cores.samples + memory.samples,
            monitor_cpu_s=seen_cores.own_cpu_s + memory.own_cpu_s + libraries.own_cpu_s + self._own_cpu_s,
        )

    def _run(self) -> None:
        wait_s = 0.0
        # A program that is soon over is looked at once all the same.
        while True:
            self._look()
            wait_s = min(3 * wait_s or _FIRST_WAIT_S, _LONGEST_WAIT_S)
            if self._stop.wait(wait_s):
                break
        self._own_cpu_s = time.thread_time()

    def _look(self) -> None:
        try:
            pids = [process.pid for process in monitor.tree_memory(self._pid, pss=False).processes]
        except OSError:
            return
        cores: set[int] = set()
        threads = 0
        for pid in pids:
            allowed, count = affinity_of(pid)
            cores |= allowed
            threads += count
        # An engine pins its threads once it has made them; a process that ends has but one left.
        if threads >= self._threads:
            self._threads, self._seen_cores = threads, cores
        # A program may begin itself anew with other variables.
        self._environment = environment_of(self._pid) or self._environment


def environment_of(pid: int) -> dict[str, str]:
    """The variables of process ``pid`` that change what is measured; empty where they may not be read."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    pairs = (pair.partition("=") for pair in text.split("\0"))
    environment = {name: value for name, equals, value in pairs if equals}
    return {name: scrub(value) for name, value in settings.performance_variables(environment).items()}


def memory_points(seen: MemorySeen) -> list[MemoryPoint]:
    """At most :data:`MEMORY_POINTS`, peaks kept."""
    return thinned(
        [
            MemoryPoint(
                t_s=round(t_s, 3),
                rss_anon_mb=round(anon / _MB, 3),
                rss_file_mb=round(file / _MB, 3),
                processes=processes,
            )
            for t_s, anon, file, processes in seen.points
        ]
    )


def thinned(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Of neighbours that become one the highest stays."""
    stride = max(1, -(-len(points) // MEMORY_POINTS))
    return [
        max(points[start : start + stride], key=lambda point: point.rss_anon_mb)
        for start in range(0, len(points), stride)
    ]


def _load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]
