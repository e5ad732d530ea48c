"""Watching any process, and a program that announces its phases."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.cli import app as bench
from benchmarks.edge_harness.measure import memory_child
from benchmarks.edge_harness.measure.memory_probe import is_same, probe_command, probe_pid
from vllm_omni import monitor
from vllm_omni.errors import OmniError

SIZE = 30_000_000
HOLDER = f"held = b'x' * {SIZE}; print('ready', flush=True); input()"
# What the probe's own program does, without an engine.
PHASES = f"""
import json, sys
def phase(name):
    print(json.dumps({{"phase": name}}), flush=True)
    assert sys.stdin.readline()
phase("before import")
held = b"x" * {SIZE}
phase("after warm-up")
more = b"y" * {SIZE}
phase("at context")
del more
phase("after trim")
print(json.dumps({{"ready_s": 1.25, "notes": ["a note"]}}), flush=True)
"""


class Clock:
    """A second passes with every sleep."""

    def __init__(self, on_sleep=lambda: None) -> None:
        self.now = 0.0
        self.on_sleep = on_sleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1.0
        self.on_sleep()


@pytest.fixture
def holder():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate()


def test_a_running_process(holder) -> None:
    clock = Clock()
    record = probe_pid(holder.pid, 5.0, sleep=clock.sleep, clock=clock)
    assert record["rss_anon_tree_mb"] > SIZE / 1e6
    assert record["pss_anon_tree_mb"] > SIZE / 1e6
    assert record["watched_s"] == 5
    assert record["ended"] is False
    assert [phase["name"] for phase in record["phases"]] == ["first look", "last look"]
    assert "RssAnon" in record["counters"]["rss_anon_tree_mb"]
    assert "warm-up" not in json.dumps(record["counters"])


def test_a_process_that_ends_while_it_is_watched(holder) -> None:
    def end() -> None:
        holder.communicate()

    clock = Clock(end)
    record = probe_pid(holder.pid, 1000.0, sleep=clock.sleep, clock=clock)
    assert record["ended"] is True
    assert record["watched_s"] == 1
    assert record["rss_anon_tree_mb"] > SIZE / 1e6
    assert any("ended after 1.0 s" in note for note in record["notes"])


def test_another_process_of_the_same_number_is_not_it(holder) -> None:
    identity = monitor.process_start_ticks(holder.pid)
    assert is_same(holder.pid, identity)
    assert not is_same(holder.pid, identity + 1)
    assert not is_same(2**22 + 1, identity)


def test_there_is_no_such_process() -> None:
    with pytest.raises(OmniError, match=r"--pid 4194305: expected a running process, found none"):
        probe_pid(2**22 + 1, 1.0)


def test_a_program_goes_through_its_phases() -> None:
    seen: list[str] = []
    record = probe_command([sys.executable, "-c", PHASES], on_phase=seen.append)
    assert seen == ["before import", "after warm-up", "at context", "after trim"]
    assert record["ready_s"] == 1.25
    assert record["notes"] == ["a note"]
    held = {phase["name"]: phase["rss_anon_mb"] for phase in record["phases"]}
    assert held["after warm-up"] - held["before import"] == pytest.approx(SIZE / 1e6, rel=0.1)
    assert record["rss_anon_tree_mb"] == held["after warm-up"]
    assert record["rss_anon_at_context_mb"] == held["at context"]
    assert record["rss_anon_after_trim_mb"] == held["after trim"]
    assert record["peak_rss_anon_tree_mb"] >= held["at context"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('error: model: expected a folder')", "exit code 1: model: expected a folder"),
        ("import sys; sys.exit(3)", "exit code 3: it logged nothing"),
        ("pass", "exit code 0"),
    ],
)
def test_a_program_that_fails_is_one_line(program: str, message: str) -> None:
    with pytest.raises(OmniError, match=message):
        probe_command([sys.executable, "-c", program], on_phase=lambda name: None)


def test_a_program_that_ends_at_a_phase_is_one_line() -> None:
    # It announces a phase, closes its standard input and fails: the answer has no reader.
    program = (
        'import os, sys; os.close(0); print(\'{"phase": "before import"}\', flush=True); '
        "sys.exit('error: model: expected a folder')"
    )
    with pytest.raises(OmniError, match="exit code 1: model: expected a folder"):
        probe_command([sys.executable, "-c", program], on_phase=lambda name: time.sleep(0.01))


def test_a_program_that_is_not_there_is_one_line() -> None:
    with pytest.raises(OmniError, match="no-such-program: No such file"):
        probe_command(["no-such-program"], on_phase=lambda name: None)


def test_a_program_that_prints_something_else_is_one_line() -> None:
    with pytest.raises(OmniError, match="expected a phase or a record, found 'hello"):
        probe_command([sys.executable, "-c", "print('hello')"], on_phase=lambda name: None)


def test_a_program_that_does_not_end_is_ended() -> None:
    with pytest.raises(OmniError, match=r"not finished in 0\.2 s"):
        probe_command([sys.executable, "-c", "input()"], on_phase=lambda name: None, timeout_s=0.2)


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_context_without_room_for_a_prompt_is_one_line(
    tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memory_child.main(["--model", "x", "--context-len", str(tokens)]) == 2
    assert f"--context-len {tokens}: expected 0, for none, or more than 2" in capsys.readouterr().err


def test_the_command_watches_a_process_and_writes_an_artifact(holder, tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    arguments = ["memory-probe", "--pid", str(holder.pid), "--seconds", "0.3", "--out", str(out)]
    done = CliRunner().invoke(bench.app, arguments)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["rss_anon_tree_mb"] > SIZE / 1e6
    artifact = read(out)
    assert artifact.kind == "probe"
    assert artifact.result is not None
    assert artifact.result["rss_anon_tree_mb"] == record["rss_anon_tree_mb"]
    assert artifact.notes == record["notes"]
    assert "first look" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--pid", "1", "--model", "x"]])
def test_one_of_model_and_pid(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["memory-probe", *arguments]) == 2
    assert "expected one of --model and --pid" in capsys.readouterr().err
