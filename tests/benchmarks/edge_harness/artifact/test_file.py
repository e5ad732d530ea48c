"""Result files: whole or not there, read strictly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact import file as module
from benchmarks.edge_harness.artifact.file import (
    read,
    rename_new,
    replace_json,
    write_new,
    write_new_json,
)
from tests.benchmarks.edge_harness.artifact_builder import grid
from vllm_omni.errors import OmniError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_new(path, grid())
    assert read(path) == grid()
    assert os.listdir(path.parent) == ["a.json"]


def test_a_result_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(OmniError, match="never overwritten"):
        write_new(path, grid())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_one_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"

    def somebody_else_is_faster(source: str, target: Path) -> None:
        path.write_text("theirs")
        raise FileExistsError(target)

    monkeypatch.setattr(module.os, "link", somebody_else_is_faster)
    with pytest.raises(OmniError, match="never overwritten"):
        write_new(path, grid())
    assert path.read_text() == "theirs"


def test_a_link_to_nowhere_is_a_name_that_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.symlink_to("nowhere")
    with pytest.raises(OmniError, match="never overwritten"):
        write_new(path, grid())
    assert os.listdir(tmp_path) == ["a.json"]


def no_links(source: Path, target: Path) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    monkeypatch.setattr(module.os, "link", no_links)
    write_new(path, grid())
    assert read(path) == grid()
    rename_new(path, tmp_path / "b.json")
    assert os.listdir(tmp_path) == ["b.json"]
    (tmp_path / "c.json").write_text("theirs")
    with pytest.raises(OmniError, match="never overwritten"):
        rename_new(tmp_path / "b.json", tmp_path / "c.json")
    assert (tmp_path / "c.json").read_text() == "theirs"
    assert read(tmp_path / "b.json") == grid()


def test_another_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_new(path, grid())
    rename_new(path, tmp_path / "b.json")
    assert os.listdir(tmp_path) == ["b.json"]
    assert read(tmp_path / "b.json") == grid()


def test_the_name_is_on_disk_before_anybody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(module, "sync_folder", lambda folder: synced.append(os.listdir(folder)))
    write_new(tmp_path / "a.json", grid())
    replace_json(tmp_path / "a.json", {})
    assert synced == [["a.json"], ["a.json"]]


def test_no_text_of_it_names_a_users_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_new(path, grid(title="/".join(("", "home", "somebody", "x"))))
    assert read(path).title == "…/x"


@pytest.mark.parametrize("write", [write_new_json, replace_json])
def test_a_failure_leaves_nothing(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "a.json"
    before = ["a.json"] if write is replace_json else []
    if before:
        path.write_text("old")
    # NaN is not JSON: other readers would refuse the file.
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(path, {"figure": float("nan")})
    assert os.listdir(tmp_path) == before
    assert not before or path.read_text() == "old"


def test_an_item_of_a_list_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    content = {
        "title": "ü\n",
        "runs": [{"memory": [1, {"t_s": 2.5}]}, {}],
        "notes": [],
        "result": {"x": [1, 2]},
    }
    for held in (content, {}):
        file.write_text("{}")
        replace_json(file, held)
        assert json.loads(file.read_text()) == held
    replace_json(file, content)
    assert '{"memory":[1,{"t_s":2.5}]},\n' in file.read_text()
    assert len(file.read_text().splitlines()) == 9


def test_replacing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    replace_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"new": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def every_key(model: dict[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in model.items():
        found.append((*at, key))
        if isinstance(value, dict) and key in {"provenance", "machine", "software", "thread_set", "cgroup"}:
            found += every_key(value, (*at, key))
    return found


COMPLETE = grid().model_dump(mode="json")
OPTIONAL = {("retraction",), ("rules",), ("refusal",)}


@pytest.mark.parametrize("key", [key for key in every_key(COMPLETE) if key not in OPTIONAL], ids=".".join)
def test_a_missing_key_makes_it_invalid(tmp_path: Path, key: tuple[str, ...]) -> None:
    content = json.loads(json.dumps(COMPLETE))
    place = content
    for part in key[:-1]:
        place = place[part]
    del place[key[-1]]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(OmniError) as error:
        read(path)
    assert f"{path}: {'.'.join(key)}: Field required" in str(error.value)


def test_an_unknown_key_makes_it_invalid(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(COMPLETE | {"extra": 1}))
    with pytest.raises(OmniError, match="extra: Extra inputs are not permitted"):
        read(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "expected JSON"), ("[]", "expected a JSON object, found list"), ("\xff", "expected JSON")],
)
def test_what_is_no_artifact(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OmniError, match=complaint):
        read(path)
    with pytest.raises(OmniError, match="expected a readable result file"):
        read(tmp_path / "none.json")
