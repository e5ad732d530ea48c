"""The frame of a peer's program: its command line, its one line of JSON, and how it ends.

The standard library alone. A worker gives :func:`main` a function that loads its engine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.edge_harness.adapters.workload import Engine, Phases, Work, measure
from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.process_age import process_age_s

Clock = Callable[[], float]
EXIT_BAD_INPUT = 2


class Load(Protocol):
    """Builds the engine of a job. It calls ``job.importing``, ``job.imported`` and ``job.loaded`` at these
    moments, and may put what it learns about the engine into ``job.learned``."""

    def __call__(self, job: Job) -> Engine: ...


class Job:
    """What one process was asked to do, and what was learned while the engine started."""

    def __init__(self, given: argparse.Namespace, clock: Clock) -> None:
        self.model: str = given.model
        self.work = Work.from_json(given.workload)
        self.options: dict[str, Any] = json.loads(given.options)
        self.threads: int = given.threads or len(os.sched_getaffinity(0))
        self.given = given
        self.learned: dict[str, Any] = {}
        self.mark: Callable[[str], None] = lambda name: None
        self._clock = clock
        self._importing_at = self._imported_at = 0.0

    def importing(self) -> None:
        """What follows is the engine's; what came before is the interpreter's and the harness's."""
        self.learned["interpreter_s"] = process_age_s()
        self._importing_at = self._clock()

    def imported(self) -> None:
        """The engine's modules are there; its weights are not."""
        self._imported_at = self._clock()
        self.learned["import_s"] = self._imported_at - self._importing_at
        self.mark("after import")

    def loaded(self) -> None:
        """The weights are there; the engine may have more to prepare."""
        self.learned["load_s"] = self._clock() - self._imported_at

    def ready(self) -> None:
        self.learned["init_s"] = self._clock() - self._imported_at
        self.mark("after load")


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, allow_abbrev=False)
    made.add_argument("--model", required=True, help="file or folder, as the engine reads it")
    made.add_argument("--threads", type=int, help="default: one per CPU that this process may use")
    made.add_argument("--workload", default="{}", help="JSON, the fields of spec.Workload")
    made.add_argument("--options", default="{}", help="JSON, the engine's own options")
    made.add_argument("--facts", default="{}", help="JSON, printed beside what was measured")
    return made


def record(
    load: Load,
    given: argparse.Namespace,
    clock: Clock = time.perf_counter,
    phases: Phases | None = None,
) -> dict[str, Any]:
    """Measure, and say what was measured."""
    job = Job(given, clock)

    def start(mark: Callable[[str], None]) -> Engine:
        job.mark = mark
        engine = load(job)
        job.ready()
        return engine

    measured = measure(start, job.work, clock=clock, phases=phases)
    facts = json.loads(given.facts)
    notes = [*measured["notes"], *facts.get("notes", []), *job.learned.pop("notes", [])]
    return {
        **measured,
        **facts,
        **job.learned,
        "ran": facts.get("ran", {}) | job.learned.get("ran", {}),
        "threads": job.threads,
        "options": job.options,
        "notes": notes,
    }


def main(load: Load, given: argparse.Namespace) -> int:
    """Run a worker; the exit code, 2 with one line for what the caller can put right."""
    output = Output()
    try:
        output.emit(record(load, given))
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0
