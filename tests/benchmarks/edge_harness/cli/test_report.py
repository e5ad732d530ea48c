"""``report`` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.edge_harness.artifact.file import write_new
from benchmarks.edge_harness.cli.app import main
from tests.benchmarks.edge_harness import artifact_builder as build


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_new(tmp_path / "results" / "a.json", build.grid(passes=3))
    return tmp_path / "results"


def test_a_page(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pages" / "report.html"
    assert main(["report", str(results), "--out", str(out), "--title", "My <b> box"]) == 0
    assert capsys.readouterr().out == f"{out}: 1 result\n"
    assert "<h1>My &lt;b&gt; box</h1>" in out.read_text()
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_the_name_says_the_format(results: Path, tmp_path: Path) -> None:
    assert main(["report", str(results), "--out", str(tmp_path / "r.md")]) == 0
    assert (tmp_path / "r.md").read_text().startswith("# Edge harness report\n")
    assert main(["report", str(results), "--out", str(tmp_path / "r.csv")]) == 0
    assert (tmp_path / "r.csv").read_text().startswith("file,title,")


def test_what_is_passed_over_is_said(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (results / "cut.json").write_text('{"format": "edge-harness/1", "ti')
    out = tmp_path / "r.html"
    assert main(["report", str(results), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{out}: 1 result\n"
    assert "not shown: cut.json: expected JSON: " in shown.err
    assert "Not shown: cut.json: expected JSON: " in out.read_text()
    assert main(["report", str(results), "--format", "markdown"]) == 0
    assert "> Not shown: cut.json: expected JSON: " in capsys.readouterr().out


def test_a_report_that_cannot_be_written_leaves_the_old_one(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    out.write_text("old")

    def full(self: Path, *_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    assert main(["report", str(results), "--out", str(out), "--force"]) == 2
    assert capsys.readouterr().err == "error: no space left\n"
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "results"]


@pytest.mark.parametrize(("kind", "start"), [("markdown", "# Edge"), ("csv", "file,title,")])
def test_other_formats_go_to_standard_output(
    results: Path, kind: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(results), "--format", kind]) == 0
    assert capsys.readouterr().out.startswith(start)


def test_nothing_is_overwritten_unasked(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    out.write_text("mine")
    assert main(["report", str(results), "--out", str(out)]) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["report", str(results), "--out", str(out), "--force"]) == 0
    assert out.read_text() != "mine"


def test_a_result_is_never_replaced(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = results / "a.json"
    before = result.read_bytes()
    for place in (result, results):
        assert main(["report", str(place), "--out", str(result), "--force"]) == 2
        assert capsys.readouterr().err.startswith("error: --out ")
    assert result.read_bytes() == before


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none"), "--out", str(tmp_path / "r.html")]) == 2
    assert "expected a result file or a folder of them" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
