"""Which allocator and OpenMP runtimes a tree of processes maps, and where its threads may run.

It looks often at first, since libraries are loaded early and a short program is soon over, then every few
seconds: reading ``maps`` takes the lock of the other process's memory for a moment.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from benchmarks.edge_harness.provenance.libraries import observed_libraries
from benchmarks.edge_harness.provenance.probe import affinity_of
from vllm_omni import monitor

_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 10.0


@dataclass(frozen=True)
class LibrariesSeen:
    """Over the whole run. More than one allocator is possible: one for each program of the tree."""

    allocators: list[str] = field(default_factory=list)
    openmp_runtimes: list[str] = field(default_factory=list)
    own_cpu_s: float = 0.0
    allowed_cores: list[int] = field(default_factory=list)

    @property
    def allocator(self) -> str | None:
        """What was put in place of glibc's where anything was."""
        others = [name for name in self.allocators if name != "glibc"]
        return ", ".join(others or self.allocators) or None


class LibraryWatch:
    """Watches from its construction to :meth:`stop`, in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._allocators: set[str] = set()
        self._runtimes: set[str] = set()
        self._cores: set[int] = set()
        self._own_cpu_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="library-watch", daemon=True)
        self._thread.start()

    def stop(self) -> LibrariesSeen:
        self._stop.set()
        self._thread.join()
        return LibrariesSeen(
            sorted(self._allocators), sorted(self._runtimes), self._own_cpu_s, sorted(self._cores)
        )

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._stop.wait(wait_s):
            self._look()
            wait_s = min(3 * wait_s, _LONGEST_WAIT_S)
        # Once more at the end: what the program did to its mask since the last look.
        self._look()
        self._own_cpu_s = time.thread_time()

    def _look(self) -> None:
        try:
            pids = [process.pid for process in monitor.tree_memory(self._pid, pss=False).processes]
        except OSError:
            return
        for pid in pids:
            self._cores |= affinity_of(pid)[0]
            try:
                seen = observed_libraries(pid)
            except OSError:
                # Ended, or another user's.
                continue
            if seen.allocator:
                self._allocators.add(seen.allocator)
            self._runtimes.update(seen.openmp_runtimes)
