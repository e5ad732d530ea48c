"""Memory of a process tree at the boundaries of its phases, and its peak between them.

``RssAnon`` is sampled every 20 ms over the whole tree; ``Pss_Anon``, which counts a page that processes share
once and costs milliseconds per GiB, is read at the boundaries alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from benchmarks.edge_harness.measure.process_age import process_age_s
from vllm_omni import monitor

INTERVAL_S = 0.02
MB = 1e6

COUNTERS = {
    "rss_anon_tree_mb": "sum of RssAnon (/proc/<pid>/status) over the process tree, after the warm-up",
    "peak_rss_anon_tree_mb": "highest sum of RssAnon over the tree in a sample, every 20 ms",
    "rss_anon_at_context_mb": "sum of RssAnon over the tree while the context is filled",
    "rss_anon_after_trim_mb": "sum of RssAnon over the tree after malloc_trim",
    "pss_anon_tree_mb": "sum of Pss_Anon (smaps_rollup) over the tree, after the warm-up: shared pages once",
    "private_tree_mb": "sum of Private_Clean and Private_Dirty over the tree, after the warm-up",
    "rss_file_tree_mb": "sum of RssFile over the tree, after the warm-up: a shared page once per process",
    "rss_shmem_tree_mb": "sum of RssShmem over the tree, after the warm-up: a shared page once per process",
    "swap_tree_mb": "sum of VmSwap over the tree, after the warm-up",
    "trim_mb": "RssAnon of the tree before malloc_trim less RssAnon after it",
}


class MemoryMarks:
    """Phases of process ``pid`` (default: this one) and its descendants.

    The peak is over the time in which the object is entered; it may be entered again, so that code that is
    timed runs unwatched. ``start_ticks`` tells the process from a later one of the same number.
    """

    def __init__(
        self,
        pid: int | None = None,
        age_s: Callable[[], float] = process_age_s,
        start_ticks: int | None = None,
    ) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._age_s = age_s
        self._start_ticks = start_ticks
        self._sampler: monitor.TreeSampler | None = None
        self._entered_s = 0.0
        self.phases: list[dict[str, Any]] = []
        self.trees: dict[str, monitor.TreeMemory] = {}
        self.last: monitor.TreeSamples | None = None
        self.peak_rss_anon_mb = 0.0
        self.peak_processes = 0
        self.samples = 0
        self.sampling_cpu_s = 0.0
        self.sampling_wall_s = 0.0
        self.points: list[dict[str, float]] = []
        self.problems: list[str] = []

    def mark(self, name: str) -> None:
        """Read the whole tree now and record it as phase ``name``."""
        tree = monitor.tree_memory(self._pid, pss=True)
        self.trees[name] = tree
        self.peak_rss_anon_mb = max(self.peak_rss_anon_mb, tree.rss_anon_bytes / MB)
        self._note(tree.problems)
        self.phases.append(
            {
                "t_s": self._age_s(),
                "name": name,
                "rss_anon_mb": tree.rss_anon_bytes / MB,
                "pss_anon_mb": None if tree.pss_anon_bytes is None else tree.pss_anon_bytes / MB,
            }
        )

    def __enter__(self) -> Self:
        self._sampler = monitor.TreeSampler(self._pid, interval_s=INTERVAL_S, start_ticks=self._start_ticks)
        self._entered_s = self._age_s()
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sampler is not None
        seen = self.last = self._sampler.stop()
        self._sampler = None
        self.peak_rss_anon_mb = max(self.peak_rss_anon_mb, seen.peak_rss_anon_bytes / MB)
        self.peak_processes = max(self.peak_processes, seen.peak_processes)
        self.samples += seen.samples
        self.sampling_cpu_s += seen.cpu_ns / 1e9
        self.sampling_wall_s += seen.wall_s
        self.points += [
            {
                "t_s": self._entered_s + t_s,
                "rss_anon_mb": anon / MB,
                "rss_file_mb": file / MB,
                "rss_shmem_mb": shmem / MB,
                "processes": processes,
            }
            for t_s, anon, file, shmem, _, processes in seen.points
        ]
        self._note(seen.problems)

    def _note(self, problems: Sequence[tuple[int, str]]) -> None:
        self.problems += [why for _, why in problems if why not in self.problems]

    def record(self) -> dict[str, Any]:
        """How the figures came about: phases, counters, the course over time, and what sampling cost."""
        return {
            "phases": self.phases,
            "counters": COUNTERS,
            "memory": self.points,
            "peak_processes": self.peak_processes,
            "memory_samples": self.samples,
            "sampling_cpu_s": self.sampling_cpu_s,
            "sampling_share_of_a_core": self.sampling_cpu_s / self.sampling_wall_s
            if self.sampling_wall_s
            else 0.0,
            "memory_problems": self.problems,
        }

    def metrics(self, settled: str, at_context: str | None) -> dict[str, float]:
        """The memory metrics, ``settled`` and ``at_context`` being names of phases."""
        figures = self.metrics_of(self.trees[settled])
        if at_context is not None:
            figures["rss_anon_at_context_mb"] = self.trees[at_context].rss_anon_bytes / MB
        return figures

    def metrics_of(self, tree: monitor.TreeMemory) -> dict[str, float]:
        """The memory metrics with ``tree`` as the settled state. What the kernel does not say is left out."""
        figures: dict[str, float | None] = {
            "rss_anon_tree_mb": tree.rss_anon_bytes / MB,
            "peak_rss_anon_tree_mb": self.peak_rss_anon_mb,
            "pss_anon_tree_mb": None if tree.pss_anon_bytes is None else tree.pss_anon_bytes / MB,
            "rss_file_tree_mb": tree.rss_file_bytes / MB,
            "rss_shmem_tree_mb": tree.rss_shmem_bytes / MB,
            "swap_tree_mb": tree.vm_swap_bytes / MB,
        }
        if tree.private_clean_bytes is not None and tree.private_dirty_bytes is not None:
            figures["private_tree_mb"] = (tree.private_clean_bytes + tree.private_dirty_bytes) / MB
        return {name: value for name, value in figures.items() if value is not None}

    def last_sample(self) -> dict[str, float]:
        """The settled figures of a tree that has ended, from the sampler's last look at it."""
        assert self.last is not None
        return {
            "rss_anon_tree_mb": self.last.last_rss_anon_bytes / MB,
            "rss_file_tree_mb": self.last.last_rss_file_bytes / MB,
            "rss_shmem_tree_mb": self.last.last_rss_shmem_bytes / MB,
            "swap_tree_mb": self.last.last_swap_bytes / MB,
        }
