"""CSV: every figure of every run."""

from __future__ import annotations

import csv
import io

from benchmarks.edge_harness.report.csv_rows import COLUMNS, csv_rows
from benchmarks.edge_harness.report.load import Source
from tests.benchmarks.edge_harness import artifact_builder as build


def rows(artifact: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_rows([Source("a.json", artifact, None)]))))  # type: ignore[arg-type]


def test_every_figure_has_a_row_with_all_its_digits() -> None:
    artifact = build.grid(passes=3)
    found = rows(artifact)
    assert len(found) == sum(len(run.metrics) for run in artifact.runs)
    first = artifact.runs[0]
    assert float(found[0]["value"]) == first.metrics["tg_tps"]
    assert (found[0]["tag"], found[0]["unit"], found[0]["direction"]) == ("stock", "tokens/s", "higher")
    assert tuple(found[0]) == COLUMNS


def test_a_failed_run_is_a_row_and_a_cold_one_does_not_count() -> None:
    found = rows(build.grid())
    (failed,) = [row for row in found if row["status"] == "failed"]
    assert (failed["metric"], failed["value"], failed["reason"]) == ("", "", "exit code 1")
    cold = [row for row in found if row["cold_cache"] == "1"]
    assert {row["counted"] for row in cold if row["metric"] == "ready_s"} == {"0"}
    assert {row["counted"] for row in cold if row["metric"] == "tg_tps"} == {"1"}


def test_no_text_becomes_a_formula() -> None:
    artifact = build.grid(passes=3, title='=HYPERLINK("x")')
    artifact.runs[0].metrics["own"] = -5.0
    found = rows(artifact)
    assert found[0]["title"] == '\'=HYPERLINK("x")'
    assert "-5.0" in {row["value"] for row in found}
