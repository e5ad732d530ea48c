"""Instruction counts: what is compared, what fails, and the dumps that the counts come from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import instruction_count
from tools.instruction_count import Failure, compare, count, instructions

ROOT = Path(__file__).resolve().parents[2]
TRACKED = {"scalar-f32q4 1": 1000, "scalar-f32q4 16": 8000}


def test_counts_within_the_tolerance_pass():
    table, wrong = compare(TRACKED, {"scalar-f32q4 1": 1020, "scalar-f32q4 16": 7840})
    assert wrong == []
    assert [line.split() for line in table[1:]] == [
        ["scalar-f32q4", "1", "1000", "1020", "+2.00%"],
        ["scalar-f32q4", "16", "8000", "7840", "-2.00%"],
    ]


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (1021, ["scalar-f32q4 1: 1021 instructions instead of 1000 (+2.10%)"]),
        (979, ["scalar-f32q4 1: 979 instructions instead of 1000 (-2.10%)"]),
        (None, ["scalar-f32q4 1: not counted"]),
    ],
)
def test_a_count_that_is_off_in_either_direction_or_missing_fails(found: int | None, wrong: list[str]):
    counts = {"scalar-f32q4 16": 8000} | ({} if found is None else {"scalar-f32q4 1": found})
    assert compare(TRACKED, counts)[1] == wrong


def test_a_kernel_that_is_not_tracked_fails():
    assert compare(TRACKED, TRACKED | {"avx2-f32q4 1": 5})[1] == ["avx2-f32q4 1: not tracked"]


def test_a_dump_without_a_total_is_refused():
    assert instructions("events: Ir\nsummary: 12345\n") == 12345
    with pytest.raises(Failure, match="no total"):
        instructions("events: Ir\n")


@pytest.mark.parametrize("total", [123, 0])
def test_each_call_that_the_driver_lists_is_counted_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int
):
    """Valgrind is stood in for: a dump holds the rows it was called with, or nothing counted."""
    script = tmp_path / "valgrind"
    script.write_text(
        "#!/bin/bash\n"
        'for a in "$@"; do case $a in --callgrind-out-file=*) out=${a#*=} ;; esac; done\n'
        'if [ -z "$out" ]; then printf "a 1\\na 16\\n"; exit; fi\n'
        f'echo "summary: $((${{@: -1}} * {total}))" > "$out"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if total:
        assert count(Path("driver"), tmp_path) == {"a 1": 123, "a 16": 16 * 123}
    else:
        with pytest.raises(Failure, match=r"a 1: callgrind met no call of instruction_count::counted_call"):
            count(Path("driver"), tmp_path)


def test_a_machine_without_valgrind_is_told_the_package(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, ROOT / "tools/instruction_count.py"],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    assert run.returncode == 1
    assert run.stderr == "error: counting instructions needs valgrind: apt-get install -y valgrind\n"


def test_every_kernel_that_callgrind_can_run_is_tracked_for_one_row_and_many():
    tracked = json.loads(instruction_count.TRACKED.read_text())
    names = set(tracked["instructions"])
    forms = {"scalar": ("f32", "bf16", "i24", "int8"), "avx2": ("f32", "int8")}
    kernels = {f"{isa}-{form}q{bits}" for isa, of in forms.items() for form in of for bits in (4, 8)}
    assert names == {f"{kernel} {rows}" for kernel in kernels for rows in (1, 16)}
    assert tracked["compiler"].startswith("rustc ")
