"""Whether the cores are free before the first run, and who is on them when they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.edge_harness.grid.monitors import CoreLoad, Monitors, OccupancySeen

WINDOWS = 2
WINDOW_S = 0.75
# One straggling core delays every parallel region as a whole; a little everywhere slows everything a little.
BUSIEST_CORE = 0.25
MEAN_BUSY = 0.05
# Of the processes on a busy core those are named that take at least this share.
NAMED_SHARE = 0.02


@dataclass(frozen=True)
class Occupied:
    """``busy``: share of each core that others take, the least of all windows. ``mean``: of all cores
    together, in the quietest window: what wanders from core to core is busy in no core's least."""

    busy: dict[int, float]
    mean: float
    processes: dict[int, list[str]]

    @property
    def is_too_busy(self) -> bool:
        return bool(self.busy) and (max(self.busy.values()) > BUSIEST_CORE or self.mean > MEAN_BUSY)

    @property
    def sentence(self) -> str:
        """``core 0 is 97 % busy (python (pid 12) 96 %), …`` of those that matter."""
        found = [
            f"core {core} is {100 * share:.0f} % busy "
            f"({', '.join(self.processes.get(core, [])) or 'with no process that takes much of it'})"
            for core, share in sorted(self.busy.items())
            if share > MEAN_BUSY
        ]
        if not found and self.is_too_busy:
            names = dict.fromkeys(name for names in self.processes.values() for name in names)
            found = [
                f"the cores are {100 * self.mean:.0f} % busy, each at times "
                f"({', '.join(names) or 'with no process that takes much of them'})"
            ]
        return "; ".join(found) or "the cores are free"


def look(monitors: Monitors, cores: Sequence[int], own_pids: Sequence[int]) -> Occupied:
    """Two windows; the quieter one counts, so that what comes and goes does not."""
    return judge([monitors.occupancy(cores, WINDOW_S, own_pids) for _ in range(WINDOWS)])


def judge(windows: Sequence[OccupancySeen]) -> Occupied:
    """Time that the hypervisor took counts as busy: it is not there for the runs either."""
    cores = windows[0].cores
    busy = {core: min(_taken(window.cores[core]) for window in windows) for core in cores}
    mean = min(sum(map(_taken, window.cores.values())) / max(1, len(window.cores)) for window in windows)
    named: dict[int, list[str]] = {core: [] for core in cores}
    last = windows[-1]
    for pid, name, core, share in last.processes:
        if core in named and share >= NAMED_SHARE:
            named[core].append(f"{name} (pid {pid}) {100 * share:.0f} %")
    for core, names in named.items():
        if last.cores[core].steal >= NAMED_SHARE:
            names.append(f"the hypervisor {100 * last.cores[core].steal:.0f} %")
    return Occupied(busy, mean, named)


def _taken(load: CoreLoad) -> float:
    return load.foreign + load.steal
