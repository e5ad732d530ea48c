"""Phases and peak of a process tree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.edge_harness.measure.memory_marks import COUNTERS, MB, MemoryMarks

# Takes memory when it is told to, by itself or in a child, and says when it has done so.
CHILD = """
import subprocess, sys
held = []
for line in sys.stdin:
    word, _, size = line.strip().partition(" ")
    if word == "take":
        held.append(b"x" * int(size))
    elif word == "drop":
        held.clear()
    elif word == "fork":
        child = subprocess.Popen([sys.executable, "-c",
            f"held = b'x' * {size}; print('ready', flush=True); input()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        held.append(child)
    print("done", flush=True)
"""
SIZE = 40_000_000


@contextmanager
def scripted() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.communicate()


def tell(process: subprocess.Popen[str], command: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_phases_and_the_peak_between_them() -> None:
    with scripted() as process:
        tell(process, "begin")
        marks = MemoryMarks(process.pid, lambda: 1.5)
        marks.mark("before")
        with marks:
            tell(process, f"take {SIZE}")
            marks.mark("held")
            tell(process, "drop")
        marks.mark("after")
    before, held, after = (phase["rss_anon_mb"] for phase in marks.phases)
    assert held - before == pytest.approx(SIZE / MB, rel=0.05)
    assert after == pytest.approx(before, abs=2)
    assert marks.peak_rss_anon_mb == pytest.approx(held, abs=1)
    assert [phase["name"] for phase in marks.phases] == ["before", "held", "after"]
    assert all(phase["pss_anon_mb"] == pytest.approx(phase["rss_anon_mb"], abs=5) for phase in marks.phases)


def test_children_are_part_of_the_tree() -> None:
    with scripted() as process:
        tell(process, "begin")
        marks = MemoryMarks(process.pid, lambda: 0.0)
        marks.mark("alone")
        tell(process, f"fork {SIZE}")
        with marks:
            marks.mark("two")
    alone, two = (phase["rss_anon_mb"] for phase in marks.phases)
    assert two - alone >= SIZE / MB
    assert marks.peak_processes == 2


def test_every_metric_names_its_counter() -> None:
    marks = MemoryMarks()
    with marks:
        marks.mark("settled")
        marks.mark("at context")
    metrics = marks.metrics("settled", "at context")
    assert metrics.keys() <= COUNTERS.keys()
    assert metrics["peak_rss_anon_tree_mb"] >= metrics["rss_anon_tree_mb"] > 0
    record = marks.record()
    assert record["memory_samples"] >= 2
    assert record["memory"][0]["rss_anon_mb"] > 0
    assert record["sampling_share_of_a_core"] >= 0
