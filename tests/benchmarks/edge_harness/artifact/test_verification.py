"""A result file is valid, retracted or invalid; nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.file import write_new
from benchmarks.edge_harness.artifact.retraction import retract
from benchmarks.edge_harness.artifact.verification import FileVerdict, result_files, verify
from benchmarks.edge_harness.cli.app import main
from tests.benchmarks.edge_harness.artifact_builder import grid
from vllm_omni.errors import OmniError

ROOT = Path(__file__).resolve().parents[4]


def verdict(path: Path) -> FileVerdict:
    (found,) = verify([path])
    return found


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    path = tmp_path / "a.json"
    write_new(path, grid())
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_valid_one(valid: Path) -> None:
    assert verdict(valid).state == "valid"


def first_run(content: dict[str, Any]) -> dict[str, Any]:
    return content["runs"][0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c.pop("provenance"), "provenance: Field required"),
        (lambda c: c["provenance"]["software"].update(git_commit=None), "expected the commit"),
        (lambda c: c["spec"].update(passes=c["spec"]["passes"] + 1), "spec_sha256: is not the digest"),
        (lambda c: c.update(spec=None), "spec: expected the specification"),
        (lambda c: first_run(c).update(tag="stranger"), "arm stranger has no provenance"),
        (lambda c: c["runs"].append(first_run(c)), "ran twice in pass 1"),
        (lambda c: c["runs"].pop(), "complete: expected"),
        (lambda c: first_run(c).update(status="failed", reason=None), "status failed with reason None"),
        (lambda c: c.update(command=["/home" + "/somebody/bench"]), "names a user's folder"),
    ],
)
def test_what_makes_it_invalid(valid: Path, change: Callable[[dict[str, Any]], object], why: str) -> None:
    edit(valid, change)
    found = verdict(valid)
    assert found.state == "invalid"
    assert why in found.why


def test_a_retracted_one_keeps_its_figures(valid: Path, tmp_path: Path) -> None:
    before = json.loads(valid.read_text())
    newer = tmp_path / "b.json"
    write_new(newer, grid())
    retract(valid, reason=" wrong head ", superseded_by="b.json", date="2026-01-02")
    after = json.loads(valid.read_text())
    assert after.pop("retraction") == {
        "date": "2026-01-02",
        "reason": "wrong head",
        "superseded_by": "b.json",
    }
    before.pop("retraction")
    assert after == before
    assert verdict(valid) == FileVerdict(valid, "retracted", "wrong head")
    newer.unlink()
    assert "b.json, which does not exist" in verdict(valid).why


def test_a_record_of_another_schema_can_only_be_retracted(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text('{"schema_version": 1, "results": []}')
    assert verdict(old).state == "invalid"
    retract(old, reason="older schema", superseded_by=None, date="2026-01-02")
    assert verdict(old).state == "retracted"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"reason": "  "}, "--reason: expected why"),
        ({"superseded_by": "none.json"}, "--superseded-by none.json: expected a result file, found none"),
    ],
)
def test_a_retraction_that_says_too_little(valid: Path, options: dict[str, Any], complaint: str) -> None:
    before = valid.read_text()
    with pytest.raises(OmniError, match=complaint):
        retract(valid, **{"reason": "r", "superseded_by": None, "date": "2026-01-02"} | options)
    assert valid.read_text() == before


def test_only_once(valid: Path) -> None:
    retract(valid, reason="first", superseded_by=None, date="2026-01-02")
    with pytest.raises(OmniError, match="retracted already: first"):
        retract(valid, reason="second", superseded_by=None, date="2026-01-02")


def test_nothing_found_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="found none"):
        result_files([tmp_path])


def test_the_commands(valid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(valid.parent)]) == 0
    assert "1 files, 0 invalid" in capsys.readouterr().out
    edit(valid, lambda c: c.pop("runs"))
    assert main(["verify", str(valid)]) == 1
    assert "runs: Field required" in capsys.readouterr().out
    assert main(["retract", str(valid), "--reason", "torn"]) == 0
    assert main(["verify", str(valid)]) == 0
    assert "retracted" in capsys.readouterr().out


def test_every_tracked_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = main(["verify"])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert shown.count("\nvalid ") >= 1, shown
