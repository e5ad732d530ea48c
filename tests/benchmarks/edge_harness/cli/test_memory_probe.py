"""``memory-probe`` on a running process, from the command line to the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.cli import app as bench
from benchmarks.edge_harness.cli import probe_output
from tests.benchmarks.edge_harness.cli.test_speed_sweep import BusyCores, FreeCores

CORE = min(os.sched_getaffinity(0))
HOLDER = f"""
import os
os.sched_setaffinity(0, [{CORE}])
held = b"x" * 30_000_000
print("ready", flush=True)
input()
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "--api-key=hidden"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate("\n")


@pytest.fixture
def artifact(holder: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(probe_output, "NativeMonitors", FreeCores)
    out = tmp_path / "memory.json"
    arguments = ["memory-probe", "--pid", str(holder.pid), "--seconds", "0.3", "--out", str(out)]
    assert bench.main(arguments) == 0
    return out


def test_provenance_is_that_of_the_watched_process(artifact: Path) -> None:
    found = read(artifact)
    assert found.provenance.thread_set.cores == [CORE]
    (arm,) = found.arms
    assert (arm.tag, arm.threads, arm.allocator) == ("memory-probe", 1, "glibc")
    # This process, which computes nothing, has torch's runtime and many threads.
    assert arm.openmp_runtimes == []
    assert "hidden" not in json.dumps([arm.command, arm.env])
    assert found.provenance.load_before.busy_cores is not None
    assert found.provenance.load_before.busy_cores.keys() == {str(CORE)}


def test_it_is_a_run_with_memory_over_time(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(artifact)
    (run,) = found.runs
    assert run.metrics["rss_anon_tree_mb"] > 30
    assert [phase.name for phase in run.phases] == ["first look", "last look"]
    assert run.memory
    assert max(point.rss_anon_mb for point in run.memory) > 30
    # The points are the run's.
    assert found.result is not None
    assert "memory" not in found.result
    assert found.summaries[0].n == 1
    page = artifact.with_name("r.html")
    assert bench.main(["report", str(artifact), "--out", str(page)]) == 0
    text = page.read_text()
    assert "<h3>Memory over time</h3>" in text
    assert text.count('class="phase-dot"') == 2
    capsys.readouterr()
    assert bench.main(["report", str(artifact), "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    assert "| rss\\_anon\\_tree\\_mb | MB |" in shown
    assert "first look" in shown


def test_two_of_them_are_compared(
    artifact: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    again = artifact.with_name("again.json")
    arguments = ["memory-probe", "--pid", str(holder.pid), "--seconds", "0.2", "--out", str(again)]
    assert bench.main(arguments) == 0
    capsys.readouterr()
    assert bench.main(["compare", str(artifact), str(again), "--json"]) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["rss_anon_tree_mb"]["median_a"] == pytest.approx(
        rows["rss_anon_tree_mb"]["median_b"], rel=0.05
    )


def test_a_process_on_busy_cores_is_watched_all_the_same(
    holder: subprocess.Popen[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_output, "NativeMonitors", BusyCores)
    out = tmp_path / "memory.json"
    assert bench.main(["memory-probe", "--pid", str(holder.pid), "--seconds", "0.1", "--out", str(out)]) == 0
    assert any(
        note.startswith(f"watched on busy cores: core {CORE} is 90 % busy") for note in read(out).notes
    )


def test_a_process_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["memory-probe", "--pid", str(2**22 + 1)]) == 2
    assert capsys.readouterr().err == f"error: --pid {2**22 + 1}: expected a running process, found none\n"
