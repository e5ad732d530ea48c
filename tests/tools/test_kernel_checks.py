"""Sanitizer, memcheck, fuzzing and the cargo benchmark: what each needs and says, and its parts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_NIGHTLY = "a nightly compiler: rustup toolchain install nightly\n"


def run_with(
    folder: Path, script: str, *arguments: str, **stand_ins: str
) -> subprocess.CompletedProcess[str]:
    """A script with nothing on PATH but the shell's own tools and these stand-ins."""
    for name in ("bash", "cat", "dirname", "env", "grep", "mkdir", "mktemp", "rm", "tee"):
        (folder / name).symlink_to(shutil.which(name) or "")
    for name, body in stand_ins.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        [ROOT / "tools" / script, *arguments], capture_output=True, text=True, env={"PATH": str(folder)}
    )


@pytest.mark.parametrize(
    ("script", "arguments", "line"),
    [
        ("asan", (), f"error: the address sanitizer needs {NO_NIGHTLY}"),
        ("fuzz", ("600",), f"error: fuzzing needs {NO_NIGHTLY}"),
        ("memcheck", (), "error: memcheck needs valgrind: apt-get install -y valgrind\n"),
    ],
)
def test_what_is_missing_is_named_in_one_line(
    tmp_path: Path, script: str, arguments: tuple[str, ...], line: str
):
    run = run_with(tmp_path, script, *arguments, cargo="exit 1")
    assert (run.returncode, run.stderr) == (2, line)


@pytest.mark.parametrize("seconds", ["", "0", "10m", "-1"])
def test_a_time_that_is_none_is_one_line(tmp_path: Path, seconds: str):
    run = run_with(tmp_path, "fuzz", seconds)
    expected = f"error: FUZZ_SECONDS='{seconds}': expected a number of seconds, at least 1\n"
    assert (run.returncode, run.stderr) == (2, expected)


def test_the_sanitizer_runs_unit_and_integration_tests(tmp_path: Path):
    run = run_with(tmp_path, "asan", cargo='echo "$RUSTFLAGS: $*"')
    assert run.returncode == 0
    line = run.stdout.splitlines()[-1]
    assert line.startswith("-Zsanitizer=address: +nightly test --package int4-kernels")
    assert {"--lib", "--tests", "--target"} <= set(line.split())


@pytest.mark.parametrize(("missing", "expected"), [("avx2", 1), ("scalar", 1), (None, 0)])
def test_memcheck_fails_when_an_instruction_set_was_left_out(
    tmp_path: Path, missing: str | None, expected: int
):
    if not re.search(r"\bavx2\b", Path("/proc/cpuinfo").read_text()):
        pytest.skip("this CPU lacks AVX2")
    lines = [f"echo 'inside its buffers: {isa}-f32q4'" for isa in ("scalar", "avx2") if isa != missing]
    run = run_with(tmp_path, "memcheck", valgrind="", cargo="\n".join(lines))
    assert run.returncode == expected
    assert run.stderr == (f"error: no {missing} kernel was checked\n" if missing else "")


def test_memcheck_fails_when_the_tests_do(tmp_path: Path):
    lines = "echo 'inside its buffers: scalar-f32q4'; echo 'inside its buffers: avx2-f32q4'; exit 99"
    assert run_with(tmp_path, "memcheck", valgrind="", cargo=lines).returncode != 0


def test_the_fuzz_script_runs_every_target_of_the_fuzz_crate():
    manifest = tomllib.loads((ROOT / "rust/int4-kernels/fuzz/Cargo.toml").read_text())
    targets = [target["name"] for target in manifest["bin"]]
    assert f"for target in {' '.join(targets)}; do" in (ROOT / "tools/fuzz").read_text()
    assert all((ROOT / "rust/int4-kernels/fuzz" / target["path"]).is_file() for target in manifest["bin"])
    # Its own workspace: `cargo build --workspace` never meets a crate that needs nightly.
    assert manifest["workspace"] == {}
    assert manifest["dependencies"]["libfuzzer-sys"].startswith("=")


@pytest.mark.slow
def test_the_cargo_benchmark_checks_every_case_before_it_times():
    """`--test` runs each case once: the comparison with the oracle, and one call."""
    inherited = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = ["cargo", "bench", "--package", "int4-kernels", "--quiet", "--", "--test"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=inherited)
    assert run.returncode == 0, run.stderr
    for tokens in (1, 4, 16, 128):
        assert re.search(rf"scalar-\w+, M = {tokens}\b", run.stdout), run.stdout
