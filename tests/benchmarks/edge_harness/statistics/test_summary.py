"""Medians over the runs that count."""

from __future__ import annotations

from benchmarks.edge_harness.metrics import Metric
from benchmarks.edge_harness.statistics.summary import metric_names, summarize
from tests.benchmarks.edge_harness import artifact_builder as build


def test_median_and_company() -> None:
    runs = build.pairs_of("tg_tps", [1, 2, 9], [5, 5, 5], marked=[3])
    row, other = summarize(runs, {})
    assert (row.tag, row.n, row.median, row.mean, row.minimum, row.maximum) == ("A", 3, 2, 4, 1, 9)
    assert row.sd is not None
    assert round(row.sd, 4) == 4.3589
    assert row.marked_runs == 1
    assert (other.tag, other.sd, other.marked_runs) == ("B", 0, 0)


def test_failed_and_invalid_runs_have_no_part() -> None:
    runs = [build.run("A", 1, {"tg_tps": 1.0}), build.failed("A", 2)]
    runs.append(build.run("A", 3, {"tg_tps": 99.0}, status="invalid", reason="other kernel"))
    (row,) = summarize(runs, {})
    assert (row.n, row.median, row.sd) == (1, 1, None)
    assert summarize([build.failed("A", 1)], {}) == []


def test_a_cold_run_is_left_out_only_where_warmth_matters() -> None:
    cold = build.run("A", 1, {"tg_tps": 1.0, "ready_s": 90.0, "own": 5.0}, cold_cache=True)
    warm = build.run("A", 2, {"tg_tps": 3.0, "ready_s": 9.0, "own": 1.0})
    declared = {"own": Metric("own", "s", "lower", "", needs_warm_cache=True)}
    medians = {row.metric: (row.n, row.median) for row in summarize([cold, warm], declared)}
    assert medians == {"tg_tps": (2, 2), "ready_s": (1, 9), "own": (1, 1)}


def test_metrics_come_in_the_order_of_the_table() -> None:
    runs = [build.run("A", 1, {"zeta": 1, "ready_s": 1, "alpha": 1, "tg_tps": 1})]
    assert metric_names(runs) == ["tg_tps", "ready_s", "alpha", "zeta"]
