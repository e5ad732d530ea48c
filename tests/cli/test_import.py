from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vllm_omni.checkpoints import gguf_import
from vllm_omni.checkpoints.gguf_import import ImportSummary
from vllm_omni.cli import import_
from vllm_omni.cli.main import run


def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0\x01")
    (tmp_path / "taken").mkdir()
    before = sorted(os.listdir(tmp_path))
    cases = {
        ("absent.gguf", "model"): "absent.gguf: no such file",
        ("text.gguf", "model"): "text.gguf: not a GGUF file",
        ("cut.gguf", "model"): "cut.gguf: truncated",
        ("cut.gguf", "taken"): "taken: exists already",
    }
    for (source, target), message in cases.items():
        code = run(["import", str(tmp_path / source), str(tmp_path / target)])
        captured = capsys.readouterr()
        assert code == 2
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        assert message in captured.err
    assert sorted(os.listdir(tmp_path)) == before


def test_a_missing_file_is_told_without_loading_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from vllm_omni.cli.main import run; code = run(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "import", str(tmp_path / "absent.gguf"), str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr


SUMMARY = ImportSummary(
    folder=Path("smollm2"),
    tensors=272,
    tensor_types={"Q4_1": 210, "F32": 61, "Q8_0": 1},
    source_bytes=98_362_432,
    folder_bytes=100_111_000,
    packed_bytes=96_487_296,
    seconds=3.21,
)


def test_the_summary_says_what_came_and_went() -> None:
    assert import_.summary_lines(SUMMARY) == [
        "imported 272 tensors (61 F32, 210 Q4_1, 1 Q8_0) into smollm2",
        "  in 98.4 MB, out 100.1 MB (96.5 MB packed), 3.2 s",
        "next: vllm-omni serve smollm2",
    ]


def test_the_handler_of_the_command_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """main sets the one handler of SIGTERM; an import neither replaces it nor needs one of its own."""
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03\0\0\0")
    during = []

    def importing(*args: object) -> ImportSummary:
        during.append(signal.getsignal(signal.SIGTERM))
        return SUMMARY

    monkeypatch.setattr(gguf_import, "import_gguf", importing)
    before = signal.getsignal(signal.SIGTERM)
    import_.run(tmp_path / "x.gguf", tmp_path / "model")
    assert during == [before]
    assert capsys.readouterr().out.startswith("imported 272 tensors")


class Clock:
    """Seconds that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(import_.time, "monotonic", lambda: self.now)


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, seconds: list[float], capsys: Any) -> str:
    clock, stream = Clock(monkeypatch), io.StringIO()
    with import_.Reporter(Console(file=stream, force_terminal=terminal, width=100)) as reporter:
        for i, second in enumerate(seconds):
            clock.now = 100.0 + second
            reporter.update(i * 1_000_000, 10_000_000)
    return stream.getvalue() + capsys.readouterr().err


def test_nothing_is_shown_within_two_seconds(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for terminal in (True, False):
        assert shown(monkeypatch, terminal, [0, 0.5, 1.9], capsys) == ""


def test_a_terminal_shows_a_bar_and_a_log_lines(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    bar = shown(monkeypatch, True, [0, 2.1, 2.2], capsys)
    assert "importing" in bar
    assert "━" in bar
    lines = shown(monkeypatch, False, [0, 2.1, 2.2, 3.0, 7.5], capsys)
    assert lines.splitlines() == ["importing: 1.0 MB of 10.0 MB", "importing: 4.0 MB of 10.0 MB"]
