"""A result file is valid, retracted or invalid; nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.file import write_new
from benchmarks.edge_harness.artifact.retraction import retract
from benchmarks.edge_harness.artifact.verification import (
    FileVerdict,
    result_files,
    tracked_results,
    verify,
)
from benchmarks.edge_harness.cli.app import main
from benchmarks.edge_harness.grid.recomputation import contradictions
from tests.benchmarks.edge_harness.artifact_builder import grid
from vllm_omni.errors import OmniError

ROOT = Path(__file__).resolve().parents[4]


def verdict(path: Path) -> FileVerdict:
    (found,) = verify([path], contradictions)
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
        (lambda c: c.update(retraction="yes"), "retraction: "),
        (lambda c: c.update(retraction={"reason": "r"}), "retraction.date: Field required"),
    ],
)
def test_what_makes_it_invalid(valid: Path, change: Callable[[dict[str, Any]], object], why: str) -> None:
    edit(valid, change)
    found = verdict(valid)
    assert found.state == "invalid"
    assert why in found.why


def test_a_folder_is_found_however_json_spells_it(valid: Path) -> None:
    edit(valid, lambda c: c.update(title="/home" + "/somebody"))
    text = valid.read_text()
    valid.write_text(text.replace("/home", "\\/ho\\u006de"))
    assert "/home" not in valid.read_text()
    assert verdict(valid).why == "names a user's folder: /home" + "/somebody"


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


def test_a_retracted_one_names_no_folder_either(valid: Path) -> None:
    retract(valid, reason="it ran in " + "/home" + "/somebody/x", superseded_by=None, date="2026-01-02")
    assert verdict(valid) == FileVerdict(valid, "retracted", "it ran in …/x")
    edit(valid, lambda c: c.update(title="/home" + "/somebody/x"))
    assert verdict(valid).state == "invalid"


def test_a_successor_is_named_from_the_files_folder(
    valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / "newer" / "b.json"
    write_new(newer, grid())
    monkeypatch.chdir(newer.parent)
    with pytest.raises(OmniError, match="expected another file"):
        retract(valid, reason="r", superseded_by="../a.json", date="2026-01-02")
    retract(valid, reason="r", superseded_by="b.json", date="2026-01-02")
    assert json.loads(valid.read_text())["retraction"]["superseded_by"] == "newer/b.json"
    monkeypatch.chdir("/")
    assert verdict(valid).state == "retracted"


def test_what_a_grids_programs_left_is_no_result(tmp_path: Path) -> None:
    write_new(tmp_path / "results.work" / "a.json", grid())
    (tmp_path / "results.work" / "a.json.work" / "caches").mkdir(parents=True)
    (tmp_path / "results.work" / "a.json.work" / "caches" / "graph.json").write_text("{}")
    # The folder that was asked for may be called anything.
    assert result_files([tmp_path / "results.work"]) == [tmp_path / "results.work" / "a.json"]


@pytest.mark.parametrize("tracked", [True, False])
def test_results_are_what_git_tracks_in_their_folders(tmp_path: Path, tracked: bool) -> None:
    root = tmp_path / "results" / "checkout"
    for name in ("benchmarks/specs/s.json", "benchmarks/x/results/a.json", "baselines/m/b.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    expected = {root / "benchmarks/x/results/a.json", root / "baselines/m/b.json"}
    if tracked:
        # A name above the checkout makes no result, nor does a file that is not tracked.
        for command in (["init", "-q"], ["add", "-A"]):
            subprocess.run(["git", *command], cwd=root, check=True)
        (root / "benchmarks/x/results/new.json").write_text("{}")
    assert set(tracked_results(root)) == expected


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
