"""The list of commands: what each target runs, and what it says when it is called wrongly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Makefile").read_text()


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=inherited)


def test_help_lists_every_documented_target():
    listed = re.findall(r"^  make ([a-z-]+)", make("help").stdout, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", TEXT, re.MULTILINE)
    internal = {"test-rust", "test-rust-all"}
    assert listed == [name for name in targets if name not in internal]
    assert make().stdout == make("help").stdout


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("serve", "error: MODEL is not set: make serve MODEL=folder"),
        ("import", "error: make import GGUF=file.gguf DIR=folder"),
    ],
)
def test_a_target_that_lacks_its_argument_says_which(target: str, line: str):
    # The set-up is not what is asked about: -o takes it as done.
    run = make("-o", "setup", target)
    assert run.returncode == 2
    assert run.stderr.splitlines()[0] == line


def test_an_unknown_isa_is_one_line():
    run = make("test-isa", "ISA=sse9")
    assert run.returncode == 2
    assert run.stderr.splitlines()[0] == "error: ISA='sse9': expected scalar, avx2, avx_vnni, avx512 or amx"


def test_an_isa_that_cannot_be_had_fails_rather_than_skips(tmp_path: Path):
    """With neither qemu nor anything else on PATH but the shell's own tools."""
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    run = subprocess.run(
        [ROOT / "tools/test-isa", "avx2"], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert run.returncode == 2
    assert run.stderr == ("error: ISA=avx2 is emulated and needs qemu-x86_64: apt-get install -y qemu-user\n")


def test_avx_vnni_is_required_of_this_cpu_and_not_emulated(tmp_path: Path):
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    # Finds no flag in /proc/cpuinfo, as on a CPU without it.
    (tmp_path / "grep").symlink_to(shutil.which("false") or "")
    run = subprocess.run(
        [ROOT / "tools/test-isa", "avx_vnni"], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert run.returncode == 2
    assert run.stderr == (
        "error: ISA=avx_vnni needs a CPU with AVX-VNNI; this one has none, and qemu does not emulate it\n"
    )


def test_tiles_are_required_of_this_cpu_and_not_emulated(tmp_path: Path):
    """A CPU without them: refused before anything is built, with and without the rest of AVX-512."""
    for name in ("bash", "dirname", "env", "grep"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    flags = Path("/proc/cpuinfo").read_text().split()
    if {"amx_tile", "amx_int8", "amx_bf16"} <= set(flags):
        pytest.skip("this CPU has AMX")
    run = subprocess.run(
        [ROOT / "tools/test-isa", "amx"], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert run.returncode == 2
    assert run.stderr == (
        "error: ISA=amx needs a CPU with AMX (amx_tile, amx_int8, amx_bf16); this one has none, "
        "and qemu does not emulate it\n"
    )


def test_the_lints_of_make_check_hold():
    """Runs every line of `make check` but the tests, which are what runs this."""
    lines = make("--dry-run", "-o", "setup", "check").stdout.splitlines()
    tools = ("cargo fmt", "cargo clippy", ".venv/bin/ruff check", ".venv/bin/ruff format", ".venv/bin/mypy")
    lints = [line for line in lines if line.startswith(tools)]
    assert len(lints) == len(tools), lines
    for line in lints:
        run = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, f"{line}\n{run.stdout}\n{run.stderr}"


@pytest.mark.slow
def test_the_constraints_resolve_to_themselves():
    """`make constraints` without an upgrade changes nothing: requirements.in and constraints.txt agree."""
    constraints = ROOT / "tools/setup/constraints.txt"
    before = constraints.read_text()
    try:
        run = make("constraints")
        after = constraints.read_text()
    finally:
        constraints.write_text(before)
    assert run.returncode == 0, run.stderr
    assert after == before
