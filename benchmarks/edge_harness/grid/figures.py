"""Every figure of a grid that follows from its runs: one function, for writing a result and for verifying it.

A result says by which rules its figures were made, so that one that was written under earlier rules is judged
by those. What the rules changed is here; how a median or an interval is computed is in ``statistics``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.edge_harness.artifact.schema import Comparison, MetricSummary, NoiseFloor, Run
from benchmarks.edge_harness.metrics import METRICS, SAMPLED, Metric
from benchmarks.edge_harness.spec import MetricDeclaration, Spec
from benchmarks.edge_harness.statistics.noise_floor import noise_floor
from benchmarks.edge_harness.statistics.summary import summarize
from benchmarks.edge_harness.statistics.verdict import compare_all, not_comparable

CONTROL_SUFFIX = "-control"

# 2: arms whose runs tell different things of themselves are not compared, nor is what the harness sampled of
# an adapter's program; memory of the other kinds leaves cold runs out.
RULES = 2
_SINCE_2_WARM = (
    "rss_file_tree_mb",
    "private_tree_mb",
    "rss_shmem_tree_mb",
    "swap_tree_mb",
    "sampled.peak_rss_file_tree_mb",
)
# What an arm's program reports of itself, and says alike in every run of one arm.
_CONSTANT = ("model", "kernels", "ran")


@dataclass(frozen=True)
class Figures:
    summaries: list[MetricSummary]
    comparisons: list[Comparison]
    noise_floor: list[NoiseFloor]


def control_of(spec: Spec) -> str | None:
    """The tag of the first arm's twin, where the grid has one."""
    tag = spec.arms[0].tag + CONTROL_SUFFIX
    return tag if any(arm.tag == tag for arm in spec.arms) else None


def figures(
    runs: Sequence[Run], spec: Spec, named: str | None, refusal: str | None = None, rules: int | None = RULES
) -> Figures:
    """``named``: what the grid is made for. ``refusal``: why no two arms may be compared."""
    by = _under_rules(spec, rules)
    declared = by.declared_metrics()
    control = control_of(spec)
    comparisons = compare_all(runs, by, named, control=control)
    return Figures(
        summarize(runs, declared),
        [_refused(row, spec, refusal, runs, rules) for row in comparisons],
        noise_floor(runs, spec.arms[0].tag, control, declared) if control else [],
    )


def inconsistencies(runs: Sequence[Run], tag: str) -> Iterator[str]:
    """What the runs of arm ``tag`` that count do not all say alike: then they are not of one arm."""
    for name in _CONSTANT:
        said = {
            json.dumps(run.reported.get(name), sort_keys=True)
            for run in runs
            if run.tag == tag and run.status == "ok"
        }
        if len(said) > 1:
            yield name


def _refused(
    row: Comparison, spec: Spec, refusal: str | None, runs: Sequence[Run], rules: int | None
) -> Comparison:
    """``row``, or a refusal of it. The confidence of the others stays: that is the cautious side."""
    why = refusal or (_why_not(row, spec, runs) if (rules or 1) >= 2 else None)
    if why is None or row.verdict == "not_comparable":
        return row
    return not_comparable(row.metric, row.a, row.b, row.pairs, why)


def _why_not(row: Comparison, spec: Spec, runs: Sequence[Run]) -> str | None:
    for tag in (row.a, row.b):
        if differs := next(inconsistencies(runs, tag), None):
            return f"the runs of {tag} differ in {differs}"
    with_adapter = {arm.tag for arm in spec.arms if arm.adapter is not None}
    if row.metric.startswith(SAMPLED) and with_adapter & {row.a, row.b}:
        return (
            "an adapter's program does more than its workload in the process that is sampled, and not every "
            "adapter's does the same"
        )
    return None


def _under_rules(spec: Spec, rules: int | None) -> Spec:
    """``spec`` with what earlier rules said otherwise of metrics declared in it."""
    if (rules or 1) >= 2:
        return spec
    earlier = {
        name: _declaration(dataclasses.replace(METRICS[name], needs_warm_cache=False))
        for name in _SINCE_2_WARM
    }
    metrics: Mapping[str, MetricDeclaration] = {**earlier, **spec.metrics}
    return spec.model_copy(update={"metrics": dict(metrics)})


def _declaration(what: Metric) -> MetricDeclaration:
    return MetricDeclaration(
        unit=what.unit,
        direction=what.direction,
        meaning=what.meaning,
        needs_warm_cache=what.needs_warm_cache,
        band_pct=what.band_pct,
    )
