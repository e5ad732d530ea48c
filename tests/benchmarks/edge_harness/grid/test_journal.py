"""The runs on record: what a kill leaves of them, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.schema import Load
from benchmarks.edge_harness.grid.journal import FORMAT, Header, Journal, Started, journal_path
from tests.benchmarks.edge_harness.grid.scripted import entry
from vllm_omni.errors import OmniError


def header(**changes: Any) -> Header:
    values = {
        "format": FORMAT,
        "spec_sha256": "a" * 64,
        "passes": 3,
        "cores": [0, 1],
        "metric": "m",
        "build": "commit 1",
        "programs_sha256": "c" * 64,
        "load_before": Load(
            time_utc="2026-01-01T00:00:00+00:00", load_average=[0, 0, 0], available_bytes=1, busy_cores=None
        ),
        "notes": [],
    }
    return Header.model_validate(values | changes)


STARTED = Started(tag="b", pass_no=1, token="t", pid=1, start_ticks=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The journal of a grid that was killed during its third run."""
    path = tmp_path / "x.json.runs.jsonl"
    journal = Journal.create(path, header())
    for tag in ("a", "b"):
        journal.started(Started(tag=tag, pass_no=1, token=tag, pid=1, start_ticks=2))
        journal.finished(entry(tag, 1))
    journal.started(STARTED)
    journal.close()
    return path


def test_it_lies_beside_the_artifact() -> None:
    assert journal_path(Path("d/x.json")) == Path("d/x.json.runs.jsonl")


def test_a_run_is_in_the_file_when_it_has_finished(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "j", header())
    journal.finished(entry("a", 1))
    lines = (tmp_path / "j").read_text().splitlines()
    assert json.loads(lines[-1])["run"]["tag"] == "a"
    journal.close()


def test_a_grid_goes_on_where_it_was(path: Path) -> None:
    journal, recorded = Journal.resume(path, header())
    assert [found.run.tag for found in recorded.entries] == ["a", "b"]
    assert recorded.in_flight == STARTED
    journal.finished(entry("b", 2))
    journal.close()
    journal, recorded = Journal.resume(path, header())
    assert [(found.run.tag, found.run.pass_no) for found in recorded.entries] == [
        ("a", 1),
        ("b", 1),
        ("b", 2),
    ]
    assert recorded.in_flight is None
    journal.remove()
    assert not path.exists()


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_that_was_torn_off_is_dropped(path: Path, kept: int) -> None:
    """After any number of its bytes, the last one before the end of the line included."""
    whole = path.read_bytes()
    line = json.dumps(entry("b", 2).model_dump(mode="json")).encode()
    path.write_bytes(whole + line[:kept])
    journal, recorded = Journal.resume(path, header())
    assert [found.run.tag for found in recorded.entries] == ["a", "b"]
    journal.finished(entry("b", 2))
    journal.close()
    assert path.read_bytes() == whole + line + b"\n"


def test_the_whole_line_without_its_end_is_dropped_too(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + json.dumps(entry("b", 2).model_dump(mode="json")).encode())
    journal, recorded = Journal.resume(path, header())
    journal.close()
    assert len(recorded.entries) == 2
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cores": [0]}, "was begun with cores [0, 1], found [0] now"),
        ({"passes": 4}, "was begun with passes 3, found 4 now"),
        ({"metric": "n"}, "was begun with metric m, found n now"),
        ({"spec_sha256": "b" * 64}, "was begun with spec digest aaaaaaaaaaaa, found bbbbbbbbbbbb now"),
        ({"build": "commit 2"}, "was begun with build commit 1, found commit 2 now"),
        (
            {"programs_sha256": "d" * 64},
            "was begun with programs digest cccccccccccc, found dddddddddddd now",
        ),
    ],
)
def test_another_grid_is_refused(path: Path, changes: dict[str, Any], expected: str) -> None:
    before = path.read_bytes()
    with pytest.raises(OmniError) as error:
        Journal.resume(path, header(**changes))
    assert str(error.value) == f"--resume: {path} {expected}"
    assert path.read_bytes() == before


def test_a_refused_grid_can_be_resumed_rightly(path: Path) -> None:
    """Nothing keeps the lock."""
    with pytest.raises(OmniError):
        Journal.resume(path, header(passes=4))
    Journal.resume(path, header())[0].close()


def test_later_notes_do_not_make_another_grid(path: Path) -> None:
    journal, recorded = Journal.resume(path, header(notes=["busy"]))
    journal.close()
    assert recorded.header == header()


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"not json\n", b"[]\n"])
def test_a_damaged_file_is_one_line(path: Path, damage: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[0 if not damage else 2] = damage
    path.write_bytes(b"".join(lines) if damage else b"")
    with pytest.raises(OmniError, match=r"expected the runs of a grid, found a damaged file: .*$"):
        Journal.resume(path, header())


def test_runs_that_are_there_are_not_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(OmniError, match="go on with --resume, or choose another --out"):
        Journal.create(path, header())
    assert path.read_bytes() == before


def test_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(
        OmniError, match=r"^--resume: .*: expected the runs of an unfinished grid, found none"
    ):
        Journal.resume(tmp_path / "x", header())


def test_one_grid_at_a_time(path: Path) -> None:
    journal, _ = Journal.resume(path, header())
    with pytest.raises(OmniError, match="another grid is writing these runs"):
        Journal.resume(path, header())
    journal.close()
    Journal.resume(path, header())[0].close()
