"""Which build is measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.edge_harness.provenance import build as module
from benchmarks.edge_harness.provenance.build import build_text, library_sha256, mapped_file
from benchmarks.edge_harness.provenance.model import file_sha256
from vllm_omni import _rust

LIBRARY = Path(str(_rust.__file__))


def test_it_names_commit_and_library() -> None:
    assert re.fullmatch(
        rf"commit [0-9a-f]{{12}}( with changes [0-9a-f]{{12}})?, library {file_sha256(LIBRARY)[:12]}",
        build_text(),
    )


@pytest.mark.parametrize("end", ["", " (deleted)"])
def test_the_library_is_found_where_it_is_mapped(end: str) -> None:
    maps = (
        "7f00-7f10 r--p 00000000 fe:00 1                 /lib/libc.so.6\n"
        f"7f10-7f20 r-xp 00000000 fe:00 2                 /a folder/{LIBRARY.name}{end}\n"
        "7f20-7f30 rw-p 00000000 00:00 0                 [stack]\n"
    )
    assert mapped_file(maps, LIBRARY) == Path("/a folder") / LIBRARY.name
    assert mapped_file("", LIBRARY) is None


def test_this_process_has_it_mapped() -> None:
    assert mapped_file(Path("/proc/self/maps").read_text(), LIBRARY) == LIBRARY.resolve()
    assert library_sha256() == file_sha256(LIBRARY)


def test_what_is_changed_tells_two_builds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"rev-parse": "a" * 40, "status": " M vllm_omni/x.py", "diff": "+1"}
    monkeypatch.setattr(module, "git_output", lambda *arguments: said[arguments[0]])
    one = build_text()
    assert one == build_text()
    said["diff"] = "+2"
    other = build_text()
    said["status"] = ""
    clean = build_text()
    assert len({one, other, clean}) == 3
    assert clean.startswith(f"commit {'a' * 12}, library ")
