from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from vllm_omni.checkpoints.atomic_folder import new_folder, warn_of_abandoned
from vllm_omni.errors import OmniError


def test_the_folder_appears_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with new_folder(target) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("x")
        assert folder.parent == tmp_path
        assert not target.exists()
    assert (target / "inner" / "a").read_text() == "x"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_any_exception_removes_it(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folder(tmp_path / "model") as folder:  # noqa: PT012
        (folder / "a").write_text("x")
        raise error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_stop_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(number)

    def interrupted(folder: Path, remove: Any = shutil.rmtree) -> None:
        os.kill(os.getpid(), number)
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    previous = signal.signal(number, leave)
    try:
        with pytest.raises(RuntimeError), new_folder(tmp_path / "model"):
            raise RuntimeError
        assert signal.getsignal(number) is leave
    finally:
        signal.signal(number, previous)
    assert os.listdir(tmp_path) == []


def test_only_an_abandoned_folder_of_the_same_target_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with new_folder(tmp_path / "model"):
        warn_of_abandoned(tmp_path / "model")
        assert caplog.messages == []
        for name in (".model.partial-abc", ".other.partial-abc"):
            (tmp_path / name).mkdir()
        warn_of_abandoned(tmp_path / "model")
    assert [message.split(":")[0] for message in caplog.messages] == [str(tmp_path / ".model.partial-abc")]


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        with new_folder(tmp_path / "model"):
            pass
    finally:
        os.umask(previous)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OmniError, match="no folder"), new_folder(tmp_path / "file" / "model"):
        pass


def test_a_name_too_long_for_the_file_system(tmp_path: Path) -> None:
    with (
        pytest.raises(OmniError, match="cannot be written: File name too long"),
        new_folder(tmp_path / ("x" * 250)),
    ):
        pass
    assert os.listdir(tmp_path) == []
