"""``compare`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.edge_harness.artifact.file import write_new
from benchmarks.edge_harness.artifact.schema import Artifact
from benchmarks.edge_harness.cli.app import main
from tests.benchmarks.edge_harness import artifact_builder as build


def written(path: Path, artifact: Artifact) -> str:
    for run in artifact.runs:
        run.disturbance = None
    write_new(path, artifact)
    return str(path)


@pytest.fixture
def before(tmp_path: Path) -> str:
    return written(tmp_path / "before.json", build.grid({"ours": 1.0}, noise=0.003))


@pytest.fixture
def after(tmp_path: Path) -> str:
    return written(tmp_path / "after.json", build.grid({"ours": 1.4}, noise=0.003, seed=1))


def test_a_table_with_medians_verdicts_and_the_caveat(
    before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", after, before]) == 0
    shown = capsys.readouterr().out
    assert "ours in A is 1.4" in " ".join(shown.split())
    assert "in the ratio, not in the interval" in " ".join(shown.split())
    assert "not necessarily the same machine" in " ".join(shown.split())
    assert "(n=6)" in shown


def test_json(before: str, after: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", after, before, "--metric", "pp_tps", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = found["rows"][0]
    assert (row["metric"], row["tag"], row["better"]) == ("pp_tps", "ours", "ours in A")
    assert row["low"] < row["ratio"] < row["high"]
    assert row["confidence"] == 0.98


def test_other_machines_are_refused(before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = build.grid({"ours": 1.0})
    other.provenance.machine = build.machine(governor="powersave")
    assert main(["compare", before, written(tmp_path / "other.json", other)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: not comparable because the machines differ in governor")


def test_an_incomplete_file_is_refused(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = written(tmp_path / "other.json", build.grid({"ours": 1.0}, complete=False))
    assert main(["compare", before, other]) == 2
    assert capsys.readouterr().err.startswith("error: not comparable because B is incomplete")


def test_an_unknown_metric_names_those_there_are(
    before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", before, after, "--metric", "speed"]) == 2
    assert "error: --metric: expected a metric (" in capsys.readouterr().err


def test_a_file_is_not_compared_with_itself(before: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", before, before]) == 2
    assert "expected another result file than A" in capsys.readouterr().err
