"""The gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.schema import Check
from benchmarks.edge_harness.metrics import METRICS, Metric
from benchmarks.edge_harness.statistics.expectations import (
    Expectations,
    check,
    fails,
    read_expectations,
    require_bands,
)
from benchmarks.edge_harness.statistics.summary import summarize
from tests.benchmarks.edge_harness import artifact_builder as build
from vllm_omni.errors import OmniError


def checks(metrics: dict[str, float], expected: dict[str, float], **bands: float) -> list[Check]:
    expectations = Expectations(arms={"ours": expected}, bands_pct=bands)
    runs = [build.run("ours", pass_no, metrics) for pass_no in (1, 2, 3)]
    return check(expectations, summarize(runs, {}), {})


@pytest.mark.parametrize(
    ("measured", "status"),
    [(101.4, "ok"), (98.6, "ok"), (101.6, "regression"), (98.4, "improved")],
)
def test_lower_is_better(measured: float, status: str) -> None:
    assert METRICS["rss_anon_tree_mb"].band_pct == 1.5
    (found,) = checks({"rss_anon_tree_mb": measured}, {"rss_anon_tree_mb": 100})
    assert found.status == status
    assert found.drift_pct == pytest.approx(measured - 100)
    assert (found.band_pct, found.expected, found.measured) == (1.5, 100, measured)


@pytest.mark.parametrize(("measured", "status"), [(96, "ok"), (94, "regression"), (106, "improved")])
def test_higher_is_better(measured: float, status: str) -> None:
    (found,) = checks({"tg_tps": measured}, {"tg_tps": 100}, tg_tps=5)
    assert found.status == status


def test_a_metric_without_a_band_is_not_gated_and_does_not_pass() -> None:
    (found,) = checks({"tg_tps": 1}, {"tg_tps": 100})
    assert (found.status, found.band_pct, found.drift_pct) == ("not_gated", None, -99)
    assert fails([found])


def test_a_band_that_nobody_gives_is_an_error_before_anything_runs() -> None:
    where = Path("expectations.json")
    own = {"own": Metric("own", "", "lower", "", band_pct=2.0)}
    # The table's own band, the spec's, the file's.
    given = Expectations(
        arms={"ours": {"rss_anon_tree_mb": 1, "own": 1, "tg_tps": 1}}, bands_pct={"tg_tps": 5}
    )
    require_bands(given, own, where)
    with pytest.raises(OmniError) as raised:
        require_bands(Expectations(arms={"ours": {"own": 1, "tg_tps": 1}}), own, where)
    assert str(raised.value) == "expectations.json: arms.ours.tg_tps: expected a band in bands_pct"


@pytest.mark.parametrize(("runs", "why"), [(1, "1 run counts, expected 3 or more"), (2, "2 runs count")])
def test_a_median_of_few_runs_does_not_pass(runs: int, why: str) -> None:
    few = [build.run("ours", pass_no, {"tg_tps": 100}) for pass_no in range(1, runs + 1)]
    expectations = Expectations(arms={"ours": {"tg_tps": 100}}, bands_pct={"tg_tps": 5})
    (found,) = check(expectations, summarize(few, {}), {})
    assert (found.status, found.measured) == ("missing", 100)
    assert found.why.startswith(why)
    assert fails([found])


def test_without_a_direction_a_change_either_way_is_a_regression() -> None:
    for measured in (90, 110):
        (found,) = checks({"own": measured}, {"own": 100}, own=5)
        assert found.status == "regression"
    (found,) = checks({"own": 104}, {"own": 100}, own=5)
    assert found.status == "ok"


def test_missing_and_unlisted() -> None:
    found = checks({"tg_tps": 1}, {"pp_tps": 2})
    assert [(row.metric, row.status) for row in found] == [("pp_tps", "missing"), ("tg_tps", "unlisted")]
    assert fails(found)
    assert not fails(found[1:])


def test_an_arm_of_which_every_run_failed_is_missing() -> None:
    expectations = Expectations(arms={"ours": {"tg_tps": 100}})
    found = check(expectations, summarize([build.failed("ours", 1)], {}), {})
    assert [row.status for row in found] == ["missing"]


def test_expected_zero_admits_only_zero() -> None:
    bands = {"swap_tree_mb": 5.0}
    assert checks({"swap_tree_mb": 0}, {"swap_tree_mb": 0}, **bands)[0].status == "ok"
    (found,) = checks({"swap_tree_mb": 1}, {"swap_tree_mb": 0}, **bands)
    assert (found.status, found.drift_pct) == ("regression", None)


def test_the_median_is_gated_and_the_specs_own_metrics_have_a_direction() -> None:
    runs = [build.run("ours", n, {"own": value}) for n, value in enumerate((100, 101, 500), 1)]
    own = {"own": Metric("own", "", "lower", "", band_pct=2.0)}
    (found,) = check(Expectations(arms={"ours": {"own": 100}}), summarize(runs, own), own)
    assert (found.status, found.measured) == ("ok", 101)
    assert "median of 3" in found.why


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("{", "expected JSON"),
        ("[]", "the file: "),
        ({"arms": {}}, "arms: "),
        ({"arms": {"ours": {"tg_tps": "fast"}}}, "arms.ours.tg_tps: "),
        ('{"arms": {"ours": {"tg_tps": NaN}}}', "arms.ours.tg_tps: "),
        ({"arms": {"ours": {}}, "bands_pct": {"tg_tps": 0}}, "bands_pct.tg_tps: "),
        ({"arms": {"ours": {}}, "band_pct": {}}, "band_pct: "),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: Any, where: str) -> None:
    file = tmp_path / "expectations.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(OmniError) as raised:
        read_expectations(file)
    assert str(raised.value).startswith(f"{file}: {where}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="expected a readable expectations file"):
        read_expectations(tmp_path / "none.json")


def test_read(tmp_path: Path) -> None:
    file = tmp_path / "expectations.json"
    file.write_text('{"arms": {"ours": {"tg_tps": 60}}, "bands_pct": {"tg_tps": 5}}')
    assert read_expectations(file).arms == {"ours": {"tg_tps": 60}}
