"""Medians and their company, over the runs that count."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.edge_harness.artifact.schema import MetricSummary, Run
from benchmarks.edge_harness.metrics import METRICS, Metric, metric
from benchmarks.edge_harness.statistics.paired import counts, is_marked


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Every metric of a successful run: in the order of the table, then the arms' own by name."""
    found = {name for run in runs if run.status == "ok" for name in run.metrics}
    return [name for name in METRICS if name in found] + sorted(found - METRICS.keys())


def summarize(runs: Sequence[Run], declared: Mapping[str, Metric]) -> list[MetricSummary]:
    """By arm in the order of the runs, then by metric. An arm without one run that counts has no row.
    Disturbed runs are in, and counted: leaving them out would favour the arm that is disturbed more."""
    names = metric_names(runs)
    rows = []
    for tag in dict.fromkeys(run.tag for run in runs):
        for name in names:
            what = metric(name, dict(declared))
            counting = [run for run in runs if run.tag == tag and counts(run, what)]
            if counting:
                rows.append(_row(tag, name, counting))
    return rows


def _row(tag: str, name: str, runs: Sequence[Run]) -> MetricSummary:
    values = [run.metrics[name] for run in runs]
    return MetricSummary(
        tag=tag,
        metric=name,
        n=len(values),
        median=statistics.median(values),
        mean=statistics.fmean(values),
        sd=statistics.stdev(values) if len(values) > 1 else None,
        minimum=min(values),
        maximum=max(values),
        marked_runs=sum(map(is_marked, runs)),
    )
