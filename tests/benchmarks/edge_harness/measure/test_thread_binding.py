"""A measuring program's threads, bound as vLLM binds those of its workers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.measure import thread_binding
from benchmarks.edge_harness.measure.fresh_process import REPOSITORY
from benchmarks.edge_harness.measure.thread_binding import add_binding_options, bind, binding_record, pin
from vllm_omni.cli import in_process
from vllm_omni.cli.machine import Machine
from vllm_omni.errors import OmniError

# What a program sees once its threads are bound: its record, and how many threads a library would start.
PROGRAM = """
import argparse, json, os
from benchmarks.edge_harness.measure.thread_binding import add_binding_options, bind, binding_record
made = argparse.ArgumentParser()
add_binding_options(made)
options = made.parse_args()
bind(options)
maps = open("/proc/self/maps").read()
print(json.dumps(binding_record(options) | {"pid": os.getpid(), "gomp": "libgomp" in maps}))
"""


def parsed(*arguments: str) -> argparse.Namespace:
    made = argparse.ArgumentParser()
    add_binding_options(made)
    return made.parse_args(arguments)


def test_threads_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(list(cores)))
    monkeypatch.setattr(Machine, "read", classmethod(lambda cls: Machine((2, 4, 6), "", 1, "")))
    assert pin(2) == [2, 4]
    assert pinned == [[2, 4]]
    with pytest.raises(OmniError, match="--threads 4: expected 1 to 3"):
        pin(4)
    assert pin(None) == [2, 4, 6]
    assert len(pinned) == 1


def test_a_program_begins_anew_once_with_its_threads_bound(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    core = min(os.sched_getaffinity(0))
    env = {"PYTHONPATH": str(REPOSITORY), "PATH": os.defpath}
    process = subprocess.Popen(
        [sys.executable, str(script), "--threads", "1"], env=env, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    record = json.loads(out)
    assert record["cores"] == [core]
    # The same process: who watches it by its pid goes on seeing it.
    assert record["pid"] == process.pid
    assert record["omp"]["restarted_after_s"] > 0
    assert record["omp"]["variables"]["OMP_NUM_THREADS"] == "1"
    assert record["gomp"] is ("libgomp" in record["omp"]["variables"].get("LD_PRELOAD", ""))
    assert "/" not in record["omp"]["variables"].get("LD_PRELOAD", "")


def test_a_program_that_is_bound_does_not_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(in_process, "restart", lambda arguments, variables: started.append(arguments))
    monkeypatch.setattr(thread_binding, "pin", lambda threads: [3, 5])
    bind(parsed())
    assert started[0][:2] == ("--bound-cores", "3,5")
    again = parsed(*started[0])
    bind(again)
    assert len(started) == 1
    assert again.cores == [3, 5]
    assert binding_record(again)["cores"] == [3, 5]
