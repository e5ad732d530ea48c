"""One grid of a user at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.edge_harness.grid.host_lock import HostLock, lock_path


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_the_second_is_told_who_has_it() -> None:
    with HostLock(Path("/r/first.json")) as first:
        assert first.holder is None
        with HostLock(Path("/r/second.json")) as second:
            assert second.holder == f"process {os.getpid()}, --out /r/first.json"
        # The refused one has changed nothing.
        assert HostLock(Path("/r/third.json")).holder == second.holder


def test_it_goes_with_its_holder_and_what_is_left_locks_nothing() -> None:
    with HostLock(Path("/r/a-long-name-of-a-file.json")):
        pass
    assert lock_path().exists()
    with HostLock(Path("/r/b.json")) as again:
        assert again.holder is None
    assert lock_path().read_text() == f"process {os.getpid()}, --out /r/b.json\n"


def test_without_a_runtime_folder_it_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for missing in ("", str(tmp_path / "none"), "relative"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", missing)
        assert lock_path() == tmp_path / "cache" / "vllm-omni-edge" / "bench.lock"


def test_where_there_is_no_folder_there_is_no_lock(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = runtime / "file"
    blocked.touch()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with HostLock(Path("/r/a.json")) as lock:
        assert lock.holder is None
