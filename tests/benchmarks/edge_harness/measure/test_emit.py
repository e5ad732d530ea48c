"""One line on the true standard output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.edge_harness.measure.emit import emit

REPOSITORY = Path(__file__).resolve().parents[4]


def test_only_the_record_reaches_standard_output() -> None:
    program = (
        "import os, subprocess, sys\n"
        "from benchmarks.edge_harness.measure.emit import Output\n"
        "print('before')\n"
        "output = Output()\n"
        "print('python'); os.write(1, b'native\\n'); subprocess.run(['echo', 'child'])\n"
        "output.emit({'tg_tps': 1.5})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == 'before\n{"tg_tps": 1.5}\n'
    assert {"python", "native", "child"} <= set(done.stderr.split())


def test_a_long_record_is_whole_and_nan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    record = {"samples": list(range(100_000))}
    with path.open("wb") as file:
        emit(record, file.fileno())
    assert json.loads(path.read_text()) == record
    with path.open("wb") as file, pytest.raises(ValueError, match="JSON"):
        emit({"tg_tps": float("nan")}, file.fileno())
    assert path.read_bytes() == b""
