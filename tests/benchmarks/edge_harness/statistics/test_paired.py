"""Which runs pair, and the intervals of their ratios."""

from __future__ import annotations

import math

import pytest

from benchmarks.edge_harness.metrics import METRICS, Metric
from benchmarks.edge_harness.statistics.paired import (
    Interval,
    counts,
    paired_interval,
    pairs,
    unpaired_interval,
)
from tests.benchmarks.edge_harness import artifact_builder as build

TG = METRICS["tg_tps"]


def test_runs_pair_by_pass_whatever_their_order() -> None:
    runs = build.pairs_of("tg_tps", [10, 11, 12], [5, 6, 7])
    found = pairs(reversed(runs), TG, "A", "B")
    assert [(pair.pass_no, pair.a, pair.b) for pair in found] == [(1, 10, 5), (2, 11, 6), (3, 12, 7)]
    assert found[0].log_ratio == pytest.approx(math.log(2))


def test_a_pass_with_one_arm_is_no_pair() -> None:
    runs = [*build.pairs_of("tg_tps", [10, 11], [5, 6]), build.run("A", 3, {"tg_tps": 12})]
    runs += [build.failed("B", 3), build.run("C", 3, {"tg_tps": 1})]
    assert [pair.pass_no for pair in pairs(runs, TG, "A", "B")] == [1, 2]


def test_what_counts() -> None:
    warm_only = METRICS["ready_s"]
    assert warm_only.needs_warm_cache
    good = build.run("A", 1, {"tg_tps": 1.0, "ready_s": 1.0})
    assert counts(good, TG)
    assert counts(good, warm_only)
    cold = good.model_copy(update={"cold_cache": True})
    assert counts(cold, TG)
    assert not counts(cold, warm_only)
    assert not counts(good, METRICS["pp_tps"])
    assert not counts(good.model_copy(update={"status": "invalid", "reason": "other kernel"}), TG)
    assert not counts(build.run("A", 1, {"tg_tps": math.nan}), TG)
    assert not counts(build.run("A", 1, {"tg_tps": math.inf}), TG)
    assert counts(build.run("A", 1, {"own": 0.0}), Metric("own", "", "higher", ""))


def test_an_arm_that_ran_twice_in_a_pass_is_refused() -> None:
    runs = build.pairs_of("tg_tps", [10], [5])
    with pytest.raises(ValueError, match="A ran twice in pass 1"):
        pairs([*runs, build.run("A", 1, {"tg_tps": 9})], TG, "A", "B")


def test_a_pair_is_marked_when_either_run_is() -> None:
    runs = build.pairs_of("tg_tps", [10, 11], [5, 6], marked=[2])
    assert [pair.marked for pair in pairs(runs, TG, "A", "B")] == [False, True]
    assert [pair.marked for pair in pairs(runs, TG, "B", "A")] == [False, True]


def test_paired_interval_is_the_textbooks() -> None:
    """Mean 0.2, sd 0.1, n 3: half-width 9.9248 × 0.1 / √3."""
    interval = paired_interval([0.1, 0.2, 0.3], 0.99)
    assert math.log(interval.ratio) == pytest.approx(0.2)
    assert math.log(interval.high) == pytest.approx(0.2 + 9.9248 * 0.1 / math.sqrt(3), abs=1e-4)
    assert math.log(interval.low) == pytest.approx(0.2 - 9.9248 * 0.1 / math.sqrt(3), abs=1e-4)
    assert interval.side == 0


def test_what_a_pass_has_in_common_cancels() -> None:
    common = [0.0, 0.7, -0.7, 0.35]
    a, b = [3 * math.exp(x) for x in common], [2 * math.exp(x) for x in common]
    interval = paired_interval([math.log(x / y) for x, y in zip(a, b, strict=True)], 0.99)
    assert interval.low == pytest.approx(1.5)
    assert interval.high == pytest.approx(1.5)
    assert unpaired_interval(a, b, 0.99).side == 0


def test_unpaired_interval_is_welchs() -> None:
    """Equal variances and sizes: Student's with 2n − 2 degrees of freedom; 4.6041 of 4 at 99 %."""
    a, b = ([math.exp(base + x) for x in (-0.1, 0.0, 0.1)] for base in (1.0, 0.0))
    interval = unpaired_interval(a, b, 0.99)
    assert math.log(interval.ratio) == pytest.approx(1.0)
    assert math.log(interval.high) == pytest.approx(1 + 4.6041 * math.sqrt(2 * 0.01 / 3), abs=1e-4)
    assert unpaired_interval([2, 2], [1, 1], 0.99) == Interval(2, 2, 2)


@pytest.mark.parametrize(("low", "high", "side"), [(1.1, 1.2, 1), (0.8, 0.9, -1), (0.9, 1.1, 0), (1, 1.1, 0)])
def test_a_side_needs_the_whole_interval(low: float, high: float, side: int) -> None:
    assert Interval((low + high) / 2, low, high).side == side


def test_an_interval_too_wide_for_a_float_is_unbounded() -> None:
    assert paired_interval([-700.0, 700.0], 0.99).high == math.inf
