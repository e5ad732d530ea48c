"""The command lines that the documentation shows, run as they are shown.

Whether this machine's cores are free while tests run is nobody's promise, so `--allow-busy` is added.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.cli.app import main
from benchmarks.edge_harness.spec import read_spec

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = "benchmarks/edge_harness/specs/example.json"
SPECS = sorted((ROOT / "benchmarks/edge_harness/specs").glob("*.json"))
RESULTS = sorted((ROOT / "benchmarks/edge_harness/results").glob("**/*.json"))


@pytest.fixture(autouse=True)
def _a_lock_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of the user's is none of the test's business."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/edge_harness/bench_harness.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(max(os.sched_getaffinity(0)) >= 56, reason="hardware: this machine has such cores")
def test_cores_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    out = tmp_path / "summary.json"
    done = script("--spec", EXAMPLE, "--passes", "3", "--cores", "56-79", "--out", str(out))
    assert done.returncode == 2
    assert done.stderr.startswith("error: --cores 56-79: expected cores")
    assert done.stderr.count("\n") == 1
    assert not out.exists()


def test_the_grid_on_cores_that_are_there(tmp_path: Path) -> None:
    out = tmp_path / "summary.json"
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    metric = "sampled.peak_rss_anon_tree_mb"
    done = script(
        *("--spec", EXAMPLE, "--passes", "3", "--metric", metric, "--cores", cores, "--out", str(out)),
        *("--allow-busy", "--settle-s", "0"),
    )
    assert done.returncode == 0, done.stderr
    artifact = read(out)
    assert artifact.complete
    assert len(artifact.runs) == 6
    assert {run.status for run in artifact.runs} == {"ok"}
    # A million integers in a list, or one after the other.
    medians = {summary.tag: summary.median for summary in artifact.summaries if summary.metric == metric}
    assert medians["sort"] > medians["max"] + 20
    assert json.loads(done.stdout.splitlines()[-1])["metric"] == metric


def test_the_grid_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "example.json"
    options = ["--spec", EXAMPLE, "--passes", "3", "--out", str(out), "--allow-busy", "--settle-s", "0"]
    assert main(options) == 0
    assert read(out).metric == "sampled.wall_s"


def test_provenance_is_read_with_one_line_of_python() -> None:
    assert RESULTS, "no measurement is tracked"
    program = "import json,sys; print(json.load(open(sys.argv[1]))['provenance'])"
    for path in RESULTS:
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
        assert "git_commit" in done.stdout, path.name


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_specification_that_is_shipped_is_valid(path: Path) -> None:
    read_spec(path)
