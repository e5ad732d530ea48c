"""Who watches a run from outside: an interface, so that tests can script what is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from vllm_omni import monitor

SAMPLE_INTERVAL_S = 0.02
KEEP_EVERY_S = 0.1
CORE_INTERVAL_S = 0.5


@dataclass(frozen=True)
class MemorySeen:
    """Of a process tree from start to end. A point: seconds, RssAnon, RssFile (bytes), processes."""

    points: tuple[tuple[float, int, int, int], ...] = ()
    last_anon_bytes: int | None = None
    peak_anon_bytes: int | None = None
    peak_file_bytes: int | None = None
    peak_processes: int | None = None
    threads: int | None = None
    cpu_s: float = 0.0
    samples: int = 0
    own_cpu_s: float = 0.0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class CoresSeen:
    """Shares of the run's core time, 0..1; ``worst_core`` is what foreign processes took of the core that
    they took most of. ``own_cpu_s`` is what watching cost."""

    steal: float = 0.0
    foreign: float = 0.0
    worst_core: float = 0.0
    processes: tuple[str, ...] = ()
    throttled_s: float = 0.0
    samples: int = 0
    own_cpu_s: float = 0.0


@dataclass(frozen=True)
class CoreLoad:
    """One core over one window: all that runs there, and what the hypervisor took; shares 0..1."""

    foreign: float
    steal: float


@dataclass(frozen=True)
class OccupancySeen:
    """``processes``: (pid, name, core, share), those that took most first."""

    cores: dict[int, CoreLoad]
    processes: tuple[tuple[int, str, int, float], ...] = field(default=())


class MemoryWatch(Protocol):
    def stop(self) -> MemorySeen: ...


class CoreWatch(Protocol):
    def stop(self) -> CoresSeen: ...


class Monitors(Protocol):
    """Starts watching; every watch is stopped before its process is reaped, so that a pid stays its own."""

    def memory(self, pid: int) -> MemoryWatch: ...

    def cores(self, cores: Sequence[int], pid: int) -> CoreWatch: ...

    def occupancy(self, cores: Sequence[int], window_s: float, own_pids: Sequence[int]) -> OccupancySeen: ...


class NativeMonitors:
    """The Rust monitor: threads without the GIL."""

    def memory(self, pid: int) -> MemoryWatch:
        sampler = monitor.TreeSampler(pid, SAMPLE_INTERVAL_S, KEEP_EVERY_S)
        sampler.start()
        return _NativeMemoryWatch(sampler)

    def cores(self, cores: Sequence[int], pid: int) -> CoreWatch:
        watch = monitor.OccupancyWatch(list(cores), pid, CORE_INTERVAL_S)
        watch.start()
        return _NativeCoreWatch(watch)

    def occupancy(self, cores: Sequence[int], window_s: float, own_pids: Sequence[int]) -> OccupancySeen:
        seen = monitor.occupancy(list(cores), window_s=window_s, own_pids=list(own_pids))
        return OccupancySeen(
            {core: CoreLoad(use.foreign, use.steal) for core, use in seen.cores.items()},
            tuple((use.pid, use.name, use.core, use.share) for use in seen.processes),
        )


class _NativeMemoryWatch:
    def __init__(self, sampler: monitor.TreeSampler) -> None:
        self._sampler = sampler

    def stop(self) -> MemorySeen:
        seen = self._sampler.stop()
        cost = MemorySeen(samples=seen.samples, own_cpu_s=seen.cpu_ns / 1e9)
        if seen.samples == 0:
            # It had ended before the first look: that is no memory of zero.
            return cost
        return replace(
            cost,
            points=tuple((t_s, anon, file, processes) for t_s, anon, file, _, _, processes in seen.points),
            last_anon_bytes=seen.last_rss_anon_bytes,
            peak_anon_bytes=seen.peak_rss_anon_bytes,
            peak_file_bytes=seen.peak_rss_file_bytes,
            peak_processes=seen.peak_processes,
            threads=seen.max_threads,
            cpu_s=seen.cpu_time_s,
            problems=tuple(why for _, why in seen.problems),
        )


class _NativeCoreWatch:
    def __init__(self, watch: monitor.OccupancyWatch) -> None:
        self._watch = watch

    def stop(self) -> CoresSeen:
        seen = self._watch.stop()
        return CoresSeen(
            steal=seen.steal,
            foreign=seen.foreign,
            worst_core=max(seen.foreign_by_core.values(), default=0.0),
            processes=tuple(seen.processes),
            throttled_s=seen.throttled_s,
            samples=seen.samples,
            own_cpu_s=seen.cpu_ns / 1e9,
        )
