"""Both doors of the harness: the script and ``vllm-omni bench``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.edge_harness.cli.app import COMMANDS, main, with_command
from vllm_omni.cli.main import run

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--spec", "a.json"], ["run", "--spec", "a.json"]),
        (["verify", "x"], ["verify", "x"]),
        (["--help"], ["--help"]),
        ([], ["--help"]),
    ],
)
def test_the_grid_is_what_runs_without_a_command(args: list[str], expected: list[str]) -> None:
    assert with_command(args) == expected


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f" {name} " not in shown] == []
    assert "--spec arms.json" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    # An example, not only a list of options.
    assert sum(name in line for line in shown.splitlines()) >= 2 or name == "run"


def test_the_script_runs_by_its_path() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/edge_harness/bench_harness.py", "verify", "nowhere"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == "error: nowhere: expected a result file or a folder of them, found nothing\n"


def test_the_command_line_of_the_product_leads_here(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "verify", "nowhere"]) == 2
    assert "error: nowhere: expected a result file" in capfd.readouterr().err
    assert run(["bench", "--help"]) == 0
    assert "memory-probe" in capfd.readouterr().out


def test_a_mistyped_command_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["memory-prob"]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: No such command 'memory-prob'")
    assert error.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from benchmarks.edge_harness.cli.app import main; main(['--help']);"
        "print(sorted({'torch', 'vllm', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
