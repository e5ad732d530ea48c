"""What may be said of two arms: one of three sentences, and the weakest that the runs force.

**Confidence.** A grid asks one question on purpose, the metric that it was made for, and gets answers to
many others on the way. The named metric's verdicts are wrong in at most 2 % of grids whose arms are equal,
those of all other metrics together in at most 1 %. Within each family the level is divided by the number of
comparisons (Bonferroni): unlike step-wise corrections it leaves every verdict an interval that agrees with
it, and it holds however much the metrics hang together. The 2 % is from simulation (test_simulation.py): at
seven passes and 1 % noise of each run, a 99 % interval finds a real 3 % in 91 of 100 grids, a 98 % interval
in 97.

**Disturbed runs** stay in: the slower arm is on the cores longer and is disturbed more often, so leaving its
runs out would favour it. But a verdict must not rest on them either, so it is computed once more without
them, and where that changes it, no difference is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.edge_harness.artifact.schema import Comparison, Run
from benchmarks.edge_harness.metrics import Metric, metric
from benchmarks.edge_harness.spec import Spec
from benchmarks.edge_harness.statistics import paired
from benchmarks.edge_harness.statistics.paired import FEWEST_PAIRS, Interval, Pair
from benchmarks.edge_harness.statistics.summary import metric_names
from benchmarks.edge_harness.statistics.verification import disagreement

NAMED_METRIC_ERROR = 0.02
OTHER_METRICS_ERROR = 0.01
NO_DIFFERENCE = "no difference shown"


def compare(
    runs: Sequence[Run],
    name: str,
    a: str,
    b: str,
    declared: Mapping[str, Metric],
    n_comparisons: int = 1,
    *,
    error_rate: float = NAMED_METRIC_ERROR,
    refusal: str | None = None,
) -> Comparison:
    """Arm ``a`` against ``b``. ``n_comparisons``: how many verdicts share ``error_rate``. ``refusal``: why
    they must not be compared, found elsewhere (see :func:`disagreement`)."""
    what = metric(name, dict(declared))
    confidence = 1 - error_rate / max(1, n_comparisons)
    mine = [run for run in runs if run.tag in (a, b)]
    try:
        found = paired.pairs(mine, what, a, b)
    except ValueError as error:
        return not_comparable(name, a, b, 0, str(error))
    if why := refusal or _refusal(mine, what, a, b, found):
        return not_comparable(name, a, b, len(found), why)
    interval = paired.paired_interval([pair.log_ratio for pair in found], confidence)
    if not all(map(math.isfinite, (interval.ratio, interval.low, interval.high))):
        return not_comparable(name, a, b, len(found), "the runs differ too much for an interval")
    side, note = interval.side, _pairs_lost(mine, what, found)
    if disturbed := sum(pair.marked for pair in found):
        clean = [pair.log_ratio for pair in found if not pair.marked]
        note += f"{disturbed} of {len(found)} pairs were disturbed. "
        if side != paired.paired_interval(clean, confidence).side:
            side = 0
            note += "The verdict changes when they are left out. "
    return _comparison(what, a, b, len(found), interval, side, confidence, note.strip())


def compare_all(
    runs: Sequence[Run],
    spec: Spec,
    named: str | None = None,
    control: str | None = None,
) -> list[Comparison]:
    """Every arm against the first that exists, for the ``named`` metric (default: the spec's) first and then
    for every other that the runs have; arms whose verification values disagree are not ranked. ``control``:
    the tag of the first arm's twin, which asks no question; where it differs from the first, nothing is said
    of that metric."""
    named = named or spec.metric
    declared = spec.declared_metrics()
    names = metric_names(runs)
    if named is None and len(names) == 1:
        named = names[0]
    existing = [arm.tag for arm in spec.arms if arm.unavailable is None and _has_runs(runs, arm.tag)]
    tags = [tag for tag in existing if tag != control]
    if not tags:
        return []
    baseline, others = tags[0], tags[1:]
    why = {
        tag: disagreement(runs, tag, baseline, spec.verification, spec.logprob_tolerance_nats)
        for tag in others
    }
    rest = [name for name in names if name != named]
    families = [([named], NAMED_METRIC_ERROR)] if named else []
    families.append((rest, OTHER_METRICS_ERROR))
    found = []
    for family, error_rate in families:
        ranked = sum(metric(name, declared).direction != "neutral" for name in family)
        size = ranked * len(others)
        twins_differ = {
            name: _twins_differ(
                compare(runs, name, control, baseline, declared, ranked, error_rate=error_rate)
            )
            for name in family
            if control is not None and control in existing
        }
        found += [
            compare(
                runs,
                name,
                tag,
                baseline,
                declared,
                size,
                error_rate=error_rate,
                refusal=why[tag] or twins_differ.get(name),
            )
            for name in family
            for tag in others
        ]
    return found


def not_comparable(name: str, a: str, b: str, pairs: int, why: str) -> Comparison:
    return Comparison(
        metric=name,
        a=a,
        b=b,
        pairs=pairs,
        ratio=None,
        low=None,
        high=None,
        verdict="not_comparable",
        better=None,
        sentence=f"not comparable because {why}",
    )


def verdict(
    what: Metric, a: str, b: str, n: int, interval: Interval, confidence: float, note: str
) -> Comparison:
    """The sentence that ``interval`` allows."""
    return _comparison(what, a, b, n, interval, interval.side, confidence, note)


def better_arm(what: Metric, a: str, b: str, side: int) -> str | None:
    if side == 0 or what.direction == "neutral":
        return None
    return a if (side > 0) == (what.direction == "higher") else b


def ratio_text(interval: Interval) -> str:
    """``1.23× (1.19–1.28)``: two decimals, or as many as it takes to keep a bound on its side of one, and
    three digits of a small ratio."""
    decimals = 2
    if interval.ratio < 0.1:
        decimals = 2 - math.floor(math.log10(interval.ratio))
    while decimals < 12 and any(
        (bound > 1) != (round(bound, decimals) > 1) or (bound < 1) != (round(bound, decimals) < 1)
        for bound in (interval.low, interval.high)
        if interval.side
    ):
        decimals += 1
    ratio, low, high = (f"{x:.{decimals}f}" for x in (interval.ratio, interval.low, interval.high))
    return f"{ratio}× ({low}–{high})"


def _refusal(runs: Sequence[Run], what: Metric, a: str, b: str, found: Sequence[Pair]) -> str | None:
    if a == b:
        return "an arm cannot be compared with itself"
    for tag in (a, b):
        invalid = [run for run in runs if run.tag == tag and run.status == "invalid"]
        if invalid:
            count = f"{len(invalid)} {'run' if len(invalid) == 1 else 'runs'}"
            return f"{count} of {tag} {'is' if len(invalid) == 1 else 'are'} invalid: {invalid[0].reason}"
    if what.direction == "neutral":
        return f"it is not declared which direction of {what.name} is better"
    if len(found) < FEWEST_PAIRS:
        return f"{_count(found)} of runs that count, expected {FEWEST_PAIRS} or more"
    if any(pair.a <= 0 or pair.b <= 0 for pair in found):
        return f"a ratio needs figures above zero, and {what.name} has others"
    clean = [pair for pair in found if not pair.marked]
    if len(clean) < FEWEST_PAIRS:
        disturbed = len(found) - len(clean)
        return f"{disturbed} of {_count(found)} were disturbed, which leaves fewer than {FEWEST_PAIRS}"
    return None


def _count(found: Sequence[Pair]) -> str:
    return f"{len(found)} {'pair' if len(found) == 1 else 'pairs'}"


def _pairs_lost(runs: Sequence[Run], what: Metric, found: Sequence[Pair]) -> str:
    """A cold pass is no loss: it was never to count."""
    cold = {run.pass_no for run in runs if what.needs_warm_cache and run.cold_cache}
    passes = {run.pass_no for run in runs} - cold
    lost = len(passes) - len(found)
    return f"{lost} of {len(passes)} passes have no pair. " if lost > 0 else ""


def _comparison(
    what: Metric, a: str, b: str, n: int, interval: Interval, side: int, confidence: float, note: str
) -> Comparison:
    return Comparison(
        metric=what.name,
        a=a,
        b=b,
        pairs=n,
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        verdict="a_higher" if side > 0 else "a_lower" if side < 0 else "no_difference",
        better=better_arm(what, a, b, side),
        sentence=f"{a} is {ratio_text(interval)} of {b}" if side else NO_DIFFERENCE,
        confidence=confidence,
        note=note,
    )


def _twins_differ(twins: Comparison) -> str | None:
    """Whatever makes two identical arms differ, a place in the order perhaps, may make any others differ."""
    differ = twins.verdict in ("a_higher", "a_lower")
    return f"the same arm twice differs: {twins.sentence}" if differ else None


def _has_runs(runs: Sequence[Run], tag: str) -> bool:
    return any(run.tag == tag for run in runs)
