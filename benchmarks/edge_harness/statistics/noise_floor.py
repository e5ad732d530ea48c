"""How far two identical arms come apart by chance, at the confidence of a single named metric.

The verdict of any other metric has a wider interval, its level being shared among many (verdict.py); what it
can show is told by that interval, not by the floor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.edge_harness.artifact.schema import NoiseFloor, Run
from benchmarks.edge_harness.metrics import Metric, metric
from benchmarks.edge_harness.statistics.paired import FEWEST_PAIRS, paired_interval, pairs
from benchmarks.edge_harness.statistics.summary import metric_names
from benchmarks.edge_harness.statistics.verdict import NAMED_METRIC_ERROR

NOTE = (
    "The same arm twice. A floor is that of a single named metric: of a grid that is made for it and "
    "compares two arms. For other metrics, and with more arms, the verdict's own interval counts, which is "
    "wider."
)


def noise_floor(runs: Sequence[Run], a: str, b: str, declared: Mapping[str, Metric]) -> list[NoiseFloor]:
    """Of every metric that the runs have, from ``a`` and ``b``, the same arm twice. A metric with fewer than
    three pairs, an ambiguous one or figures that are not positive has none."""
    floors = []
    for name in metric_names(runs):
        try:
            found = pairs(runs, metric(name, dict(declared)), a, b)
        except ValueError:
            continue
        if len(found) < FEWEST_PAIRS or any(pair.a <= 0 or pair.b <= 0 for pair in found):
            continue
        log_ratios = [pair.log_ratio for pair in found]
        interval = paired_interval(log_ratios, 1 - NAMED_METRIC_ERROR)
        half_width = math.log(interval.high / interval.low) / 2
        floors.append(
            NoiseFloor(
                metric=name,
                pairs=len(found),
                ratio=interval.ratio,
                low=interval.low,
                high=interval.high,
                half_width_pct=100 * math.expm1(half_width),
                sd_pct=100 * statistics.stdev(log_ratios),
            )
        )
    return floors


def is_suspicious(floor: NoiseFloor) -> bool:
    """Two identical arms that differ: by chance in 2 of 100, else something favours a place in the order."""
    return floor.low > 1 or floor.high < 1
