"""Pairs of runs from the same pass, and the interval of their mean log-ratio.

What a pass does to all its runs (a hot machine, a neighbour, a slow clock) cancels in the ratio of two of
them, so ratios by pass are far tighter than the figures they are made of.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.edge_harness.artifact.schema import Run
from benchmarks.edge_harness.metrics import Metric
from benchmarks.edge_harness.statistics import student

FEWEST_PAIRS = 3


@dataclass(frozen=True)
class Pair:
    pass_no: int
    a: float
    b: float
    marked: bool
    """Whether either run was disturbed."""

    @property
    def log_ratio(self) -> float:
        """Only of positive values."""
        return math.log(self.a) - math.log(self.b)


@dataclass(frozen=True)
class Interval:
    """Of a ratio: its geometric mean and the bounds that hold it with the asked confidence."""

    ratio: float
    low: float
    high: float

    @property
    def side(self) -> int:
        """1 or -1 where the whole interval lies above or below a ratio of one, else 0."""
        return (self.low > 1) - (self.high < 1)


def counts(run: Run, metric: Metric) -> bool:
    """Whether ``run`` has a figure of ``metric`` that may enter statistics."""
    return (
        run.status == "ok"
        and math.isfinite(run.metrics.get(metric.name, math.nan))
        and not (metric.needs_warm_cache and run.cold_cache)
    )


def is_marked(run: Run) -> bool:
    return run.disturbance is not None and run.disturbance.marked


def pairs(runs: Iterable[Run], metric: Metric, a: str, b: str) -> list[Pair]:
    """Passes in which both arms have a figure. Raises ``ValueError`` when an arm ran twice in a pass: which
    of the two to pair is not a matter of choice."""
    by_arm: dict[str, dict[int, Run]] = {a: {}, b: {}}
    for run in runs:
        if run.tag in by_arm and counts(run, metric):
            if run.pass_no in by_arm[run.tag]:
                raise ValueError(f"{run.tag} ran twice in pass {run.pass_no}")
            by_arm[run.tag][run.pass_no] = run
    return [
        Pair(
            pass_no,
            by_arm[a][pass_no].metrics[metric.name],
            by_arm[b][pass_no].metrics[metric.name],
            is_marked(by_arm[a][pass_no]) or is_marked(by_arm[b][pass_no]),
        )
        for pass_no in sorted(by_arm[a].keys() & by_arm[b].keys())
    ]


def paired_interval(log_ratios: Sequence[float], confidence: float) -> Interval:
    """The t-interval of the mean of at least two log-ratios, as ratios."""
    mean = statistics.fmean(log_ratios)
    error = statistics.stdev(log_ratios) / math.sqrt(len(log_ratios))
    return _interval(mean, student.two_sided(confidence, len(log_ratios) - 1) * error)


def unpaired_interval(a: Sequence[float], b: Sequence[float], confidence: float) -> Interval:
    """Welch's t-interval of the difference of two means of logarithms, as ratios; two figures each at least.
    It holds what varied among the runs of each side and nothing of what differs between the two sides."""
    logs_a, logs_b = [math.log(value) for value in a], [math.log(value) for value in b]
    mean = statistics.fmean(logs_a) - statistics.fmean(logs_b)
    part_a, part_b = statistics.variance(logs_a) / len(a), statistics.variance(logs_b) / len(b)
    variance = part_a + part_b
    if variance == 0:
        return _interval(mean, 0.0)
    degrees = variance**2 / (part_a**2 / (len(a) - 1) + part_b**2 / (len(b) - 1))
    return _interval(mean, student.two_sided(confidence, degrees) * math.sqrt(variance))


def _interval(mean: float, half_width: float) -> Interval:
    return Interval(*(_exp(x) for x in (mean, mean - half_width, mean + half_width)))


def _exp(x: float) -> float:
    """An interval too wide for a float is unbounded, not an error."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
