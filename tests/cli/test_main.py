"""The command line: help, errors in one line, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vllm_omni
from vllm_omni.cli import main
from vllm_omni.errors import FormatError, OmniError

COMMANDS = ("import", "serve", "demo", "version")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VLLM_OMNI_EDGE_")]:
        monkeypatch.delenv(name)


def command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_omni.cli.main", *args],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_shows_every_command_by_example() -> None:
    result = command("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert f" {name} " in result.stdout
    assert "vllm-omni import SmolLM2-135M-Instruct.Q4_1.gguf smollm2" in result.stdout
    assert "vllm-omni serve smollm2 --port 8000" in result.stdout
    assert command().stdout == result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(name: str) -> None:
    result = command(name, "--help")
    assert result.returncode == 0
    assert f"vllm-omni {name}" in result.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from vllm_omni.cli import main\n"
        "assert main.run(['demo', '--help']) == 0\n"
        "heavy = {'torch', 'numpy', 'vllm', 'gguf', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == "[]"


def test_version() -> None:
    lines = command("version").stdout.splitlines()
    assert lines[0] == f"vllm-omni-edge {vllm_omni.__version__}"
    assert any(line.startswith("torch 2.") for line in lines)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "No such command 'nothing'; see `vllm-omni --help`"),
        (["import", "only-one.gguf"], "Missing argument 'DIR'; see `vllm-omni import --help`"),
        (["demo", "--nothing"], "No such option: --nothing; see `vllm-omni demo --help`"),
        (["demo", "--max-tokens", "0"], "--max-tokens"),
        (["serve", "--port", "1"], "serve: expected MODEL before the options, found --port"),
        (["serve"], "Missing argument"),
    ],
)
def test_bad_usage_is_one_line(args: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(args) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_unknown_setting_is_refused() -> None:
    result = command("version", VLLM_OMNI_EDGE_IAS="avx2")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: unknown environment variable VLLM_OMNI_EDGE_IAS: expected one of")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OmniError("x.gguf: not a GGUF file"), 2, "error: x.gguf: not a GGUF file\n"),
        (FormatError("two\nlines"), 2, "error: two lines\n"),
        (
            FileNotFoundError(2, "No such file or directory", "x"),
            2,
            "error: [Errno 2] No such file or directory: 'x'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_of_a_command(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from vllm_omni.cli import import_

    def fail(gguf_file: Path, out_dir: Path) -> None:
        raise error

    monkeypatch.setattr(import_, "run", fail)
    assert main.run(["import", "a.gguf", "b"]) == code
    assert capfd.readouterr().err == line


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.cli import import_

    def fail(gguf_file: Path, out_dir: Path) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(import_, "run", fail)
    with pytest.raises(KeyError):
        main.run(["import", "a.gguf", "b"])


def test_import_takes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.cli import import_

    calls = []
    monkeypatch.setattr(import_, "run", lambda *args: calls.append(args))
    assert main.run(["import", "a.gguf", "b"]) == 0
    assert calls == [(Path("a.gguf"), Path("b"))]


def test_serve_passes_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.cli import serve

    calls = []
    monkeypatch.setattr(serve, "run", lambda *args: calls.append(args))
    assert main.run(["serve", "smollm2", "--port", "9000", "-tp", "1", "--help", "--", "x"]) == 0
    assert calls == [("smollm2", ["--port", "9000", "-tp", "1", "--help", "--", "x"])]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_unwind_quietly(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """A real signal while a command waits: it cleans up, and there is no traceback."""
    script = tmp_path / "wait.py"
    script.write_text(
        "import sys, time\n"
        "from vllm_omni.cli import import_, main\n"
        "def wait(*args):\n"
        "    try:\n"
        "        print('waiting', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally: print('cleaned up', flush=True)\n"
        "import_.run = wait\n"
        "sys.argv = ['vllm-omni', 'import', 'a.gguf', 'b']\n"
        "main.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (code, "cleaned up\n", "")


def test_a_reader_that_goes_away_ends_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_omni.cli.main", "version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=30)
    assert err == b""


def test_help_is_fast() -> None:
    best_s = float("inf")
    for _ in range(3):
        start = time.monotonic()
        command("--help")
        best_s = min(best_s, time.monotonic() - start)
    assert best_s < 3.0
