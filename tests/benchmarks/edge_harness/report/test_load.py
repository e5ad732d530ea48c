"""Which files a report is of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.edge_harness.artifact.file import write_new
from benchmarks.edge_harness.artifact.schema import FORMAT
from benchmarks.edge_harness.report.load import load
from tests.benchmarks.edge_harness import artifact_builder as build
from vllm_omni.errors import OmniError


def test_folders_are_searched_and_what_is_passed_over_is_said(tmp_path: Path) -> None:
    write_new(tmp_path / "suite" / "b.json", build.probe())
    write_new(tmp_path / "a.json", build.probe())
    (tmp_path / "expectations.json").write_text('{"arms": {}}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "next.json").write_text('{"format": "edge-harness/2"}')
    found = [(source.name, source.problem) for source in load([tmp_path])]
    assert found[:2] == [("a.json", None), ("suite/b.json", None)]
    assert found[2][0] == "broken.json"
    assert (found[2][1] or "").startswith("expected JSON: ")
    assert found[3:] == [
        ("expectations.json", f"expected a result of format {FORMAT}, found no format"),
        ("next.json", f"expected a result of format {FORMAT}, found edge-harness/2"),
    ]


def test_a_file_that_is_named_twice_is_shown_once(tmp_path: Path) -> None:
    write_new(tmp_path / "a.json", build.probe())
    assert len(load([tmp_path / "a.json", tmp_path, tmp_path / "a.json"])) == 1


def test_an_invalid_result_is_an_error(tmp_path: Path) -> None:
    content = build.probe().model_dump(mode="json")
    del content["provenance"]["software"]
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(OmniError, match=r"a\.json: provenance\.software: Field required"):
        load([tmp_path])


def test_a_named_file_that_is_no_result_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(OmniError, match=r"a\.json: "):
        load([tmp_path / "a.json"])


def test_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="expected result files, found none"):
        load([tmp_path])
    with pytest.raises(OmniError, match="found nothing"):
        load([tmp_path / "nowhere"])
    (tmp_path / "cut.json").write_text('{"format": ')
    with pytest.raises(OmniError, match=r"found none; cut\.json: expected JSON: "):
        load([tmp_path])


def test_a_retracted_file_of_another_schema_is_shown_without_figures(tmp_path: Path) -> None:
    retraction = {"date": "2026-01-05", "reason": "old", "superseded_by": None}
    (tmp_path / "a.json").write_text(json.dumps({"format": FORMAT, "retraction": retraction}))
    (source,) = load([tmp_path])
    assert source.artifact is None
    assert source.retraction is not None
    assert source.retraction.reason == "old"


def test_a_retraction_without_a_reason_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"format": FORMAT, "retraction": {"date": "2026-01-05"}}))
    with pytest.raises(OmniError, match=r"a\.json: retraction: Field required"):
        load([tmp_path])
