"""How much others took of a run's cores, and when that is enough to distrust the run."""

from __future__ import annotations

from benchmarks.edge_harness.artifact.schema import Disturbance
from benchmarks.edge_harness.grid.monitors import CoresSeen
from benchmarks.edge_harness.provenance.scrub import scrub

# Share of a run's core time that others may take before the run is marked, and of a single core's: one core
# that is held up holds up every parallel region.
MARK_SHARE = 0.05
MARK_WORST_CORE = 0.25
# And at least this much time: the kernel counts in ticks of 10 ms, one of which is much of a short run.
MARK_LEAST_S = 0.05


def disturbance(seen: CoresSeen, wall_s: float, cores: int) -> Disturbance | None:
    """Of a process that ran for ``wall_s`` on so many ``cores``. Throttling is counted over all of them, as
    its limit is."""
    core_s = wall_s * cores
    if core_s == 0:
        return None
    shares = (
        (seen.steal, MARK_SHARE, core_s),
        (seen.foreign, MARK_SHARE, core_s),
        (seen.worst_core, MARK_WORST_CORE, wall_s),
        (seen.throttled_s / core_s, MARK_SHARE, core_s),
    )
    return Disturbance(
        steal=round(seen.steal, 5),
        foreign=round(seen.foreign, 5),
        foreign_processes=[scrub(name) for name in seen.processes],
        throttled_s=round(seen.throttled_s, 6),
        marked=any(share > limit and share * of_s >= MARK_LEAST_S for share, limit, of_s in shares),
        worst_core_foreign=round(seen.worst_core, 5),
    )
