"""``run`` as a process of its own, with the real monitor: killed, stopped, refused.

A scripted arm tells by a file that the run in question has begun; what follows waits for that file and for
nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.artifact.verification import verify
from benchmarks.edge_harness.grid.journal import journal_path
from tests.benchmarks.edge_harness.grid.scripted import here, python

ROOT = Path(__file__).resolve().parents[4]
CORE = str(here().cores[0])

# Hangs in its third run as long as a file says so, with a child of its own.
ARM = """
import os, pathlib, signal
folder = pathlib.Path({folder!r})
count = folder / "count"
number = len(count.read_text()) + 1 if count.exists() else 1
count.write_text("x" * number)
if number == 3 and (folder / "hang").exists():
    child = os.fork()
    if child:
        (folder / "begun.new").write_text(f"{{os.getpid()}} {{child}}")
        os.rename(folder / "begun.new", folder / "begun")
    signal.pause()
print('{{"m": %d}}' % number)
"""


def bench(folder: Path, *options: str) -> list[str]:
    return [
        sys.executable, "benchmarks/edge_harness/bench_harness.py", "--spec", str(folder / "arms.json"),
        "--out", str(folder / "out.json"), "--cores", CORE, "--allow-busy", *options,
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _a_lock_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of the user's is none of the test's business."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "arm.py").write_text(ARM.format(folder=str(tmp_path)))
    arm = {"command": [sys.executable, "-I", "-S", str(tmp_path / "arm.py")]}
    spec = {
        "arms": [{"tag": "a", **arm}, {"tag": "b", **arm}],
        "metric": "m",
        "metrics": {"m": {"direction": "higher"}},
        "passes": 2,
        "settle_s": 0,
    }
    (tmp_path / "arms.json").write_text(json.dumps(spec))
    return tmp_path


def stopped_in_its_third_run(folder: Path, number: signal.Signals) -> tuple[int, list[int]]:
    """The exit code of the harness, and the pids of the run in flight."""
    (folder / "hang").touch()
    harness = subprocess.Popen(bench(folder), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (folder / "begun").exists():
            assert harness.poll() is None, "the harness ended before its third run"
            assert time.monotonic() < deadline, "the third run did not begin"
            time.sleep(0.01)
        harness.send_signal(number)
        code = harness.wait(timeout=120)
    finally:
        if harness.poll() is None:
            harness.kill()
            harness.wait()
    (folder / "hang").unlink()
    return code, [int(pid) for pid in (folder / "begun").read_text().split()]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_kill_9_loses_the_run_in_flight_and_nothing_else(folder: Path) -> None:
    code, pids = stopped_in_its_third_run(folder, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not (folder / "out.json").exists()
    assert all(lives(pid) for pid in pids)
    # As a kill may leave it.
    with journal_path(folder / "out.json").open("ab") as file:
        file.write(b'{"run": {"tag": "a", "pa')
    done = subprocess.run(bench(folder, "--resume"), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "going on after 2 of 4 runs" in done.stderr
    assert not any(lives(pid) for pid in pids)
    artifact = read(folder / "out.json")
    assert artifact.complete
    assert [(run.pass_no, run.tag, run.metrics["m"]) for run in artifact.runs] == [
        (1, "a", 1),
        (1, "b", 2),
        (2, "a", 4),
        (2, "b", 5),
    ]
    assert [verdict.state for verdict in verify([folder / "out.json"])] == ["valid"]
    # Seen by the real monitor.
    assert all(run.metrics["sampled.wall_s"] > run.metrics["sampled.cpu_s"] > 0 for run in artifact.runs)
    assert not journal_path(folder / "out.json").exists()


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_ends_the_run_and_leaves_a_valid_incomplete_artifact(
    folder: Path, number: signal.Signals, expected: int
) -> None:
    code, pids = stopped_in_its_third_run(folder, number)
    assert code == expected
    assert not any(lives(pid) for pid in pids)
    artifact = read(folder / "out.json")
    assert (artifact.complete, artifact.exit_code, len(artifact.runs)) == (False, expected, 2)
    assert [verdict.state for verdict in verify([folder / "out.json"])] == ["valid"]


def test_busy_cores_are_refused_by_name(folder: Path) -> None:
    """The name of the process that keeps a core busy, the core, and how much."""
    # Of a higher priority where that is allowed, so that one of them is the busiest even beside others.
    code = f"""
import contextlib, os
os.sched_setaffinity(0, [{CORE}])
with contextlib.suppress(PermissionError):
    os.nice(-10)
print(flush=True)
while True:
    pass"""
    busy = [subprocess.Popen(python(code), stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        command = [part for part in bench(folder) if part != "--allow-busy"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    finally:
        for process in busy:
            process.kill()
            process.communicate()
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"core {CORE} is " in done.stderr
    assert any(f"(pid {process.pid}) " in done.stderr for process in busy)
    assert not (folder / "count").exists()


def test_the_published_command_is_refused_where_its_cores_are_missing(folder: Path) -> None:
    command = [
        sys.executable, "benchmarks/edge_harness/bench_harness.py", "--spec", str(folder / "arms.json"),
        "--passes", "3", "--metric", "rss_anon_tree_mb", "--cores", "56-79",
        "--out", str(folder / "summary.json"),
    ]  # fmt: skip
    if os.sched_getaffinity(0) >= set(range(56, 80)):
        pytest.skip("this machine has cores 56-79")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --cores 56-79: expected cores ")
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "summary.json").exists()
