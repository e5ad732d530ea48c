"""What the probes' commands share: free cores, watched processes, an artifact. People read standard error,
programs read one JSON line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
from benchmarks.edge_harness.cli.compile_cache import CompileCache
from benchmarks.edge_harness.cli.probe_runs import (
    Child,
    SampleSet,
    arms_of,
    monitor_of,
    runs_of,
    thread_set_of,
)
from benchmarks.edge_harness.cli.process_watch import ProcessWatch, Watched
from benchmarks.edge_harness.grid import preflight
from benchmarks.edge_harness.grid.cores import core_list
from benchmarks.edge_harness.grid.monitors import Monitors, NativeMonitors
from benchmarks.edge_harness.measure import fresh_process
from benchmarks.edge_harness.provenance.load import collect_load
from benchmarks.edge_harness.provenance.model import model_identity
from benchmarks.edge_harness.provenance.probe import probe_artifact
from benchmarks.edge_harness.provenance.scrub import scrub_values
from vllm_omni.cli.machine import Machine
from vllm_omni.errors import OmniError

COLD_CACHE_NOTE = (
    "the compile cache was cold: start-up and memory figures are those of a first start, and are not counted"
)


def cores_for(threads: int | None) -> list[int]:
    """Where a program with ``--threads`` computes: on the first cores of this process, or on all of them."""
    return list(Machine.read().cores[:threads])


class ProbeOutput:
    """Made before the measurement: a result that could not be written is refused first, then busy cores; and
    the load of the machine is taken. ``watched_pid``: a process that was running already; it is watched where
    it is, so its cores are no reason to refuse."""

    def __init__(
        self,
        title: str,
        out: Path | None,
        *,
        cores: Sequence[int] | None = None,
        allow_busy: bool = False,
        watched_pid: int | None = None,
    ) -> None:
        if out is not None:
            refuse_existing(out)
        self.title = title
        self.out = out
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self.notes: list[str] = []
        self.cores = sorted(os.sched_getaffinity(0) if cores is None else cores)
        self._monitors: Monitors = NativeMonitors()
        self._watched: Watched | None = None
        self._look(allow_busy, watched_pid)
        self._before = collect_load(self.cores)

    def _look(self, allow_busy: bool, watched_pid: int | None) -> None:
        own = [os.getpid()] if watched_pid is None else [os.getpid(), watched_pid]
        with self.console.status("are the cores free?"):
            occupied = preflight.look(self._monitors, self.cores, own)
        if not occupied.is_too_busy:
            return
        if watched_pid is not None:
            self.notes.append(f"watched on busy cores: {occupied.sentence}")
        elif allow_busy:
            self.notes.append(f"begun on busy cores: {occupied.sentence}")
        else:
            raise OmniError(
                f"{occupied.sentence}: expected free cores: wait, choose others than "
                f"{core_list(self.cores)} with taskset, or record it with --allow-busy"
            )

    def line(self, text: str = "") -> None:
        self.console.print(text)

    def measure(
        self,
        command: Sequence[str],
        title: str,
        *,
        threads: int | None = None,
        cache: CompileCache | None = None,
    ) -> Child:
        """Run one measuring program in a fresh process that is watched on the cores of ``threads``."""
        record = fresh_process.measure_in_fresh_process(
            command, title, console=self.console, watch=self.watching(cores_for(threads))
        )
        return self.child(command, record, cache)

    def child(
        self, command: Sequence[str], record: dict[str, Any], cache: CompileCache | None = None
    ) -> Child:
        """What was last watched, with its record."""
        assert self._watched is not None
        cold = cache is not None and cache.has_grown()
        if cold and COLD_CACHE_NOTE not in self.notes:
            self.notes.append(COLD_CACHE_NOTE)
        return Child(list(command), record, self._watched, cold)

    def watching(
        self, cores: Sequence[int], *, memory: bool = True
    ) -> Callable[[int], AbstractContextManager[object]]:
        """What watches a process for :meth:`child`."""

        @contextmanager
        def watch(pid: int) -> Iterator[None]:
            watching = ProcessWatch(pid, cores, self._monitors, memory=memory)
            try:
                yield
            finally:
                self._watched = watching.stop()

        return watch

    def finish(
        self,
        record: dict[str, Any],
        sets: Sequence[SampleSet],
        *,
        metric: str,
        model: Path | None = None,
        stdout: str | None = None,
        in_runs: Sequence[str] = ("memory",),
    ) -> None:
        """Show the notes, write the artifact, and print ``record`` as the last line (or ``stdout`` in its
        place, for a table that goes into a file). ``metric`` is what the probe was made for; ``in_runs`` are
        keys of the record that the runs of the artifact hold."""
        record = record | {"notes": list(dict.fromkeys([*self.notes, *record.get("notes", [])]))}
        for note in record["notes"]:
            self.console.print(f"note: {note}", style="yellow")
        if self.out is not None:
            artifact = probe_artifact(
                self.title,
                scrub_values({name: value for name, value in record.items() if name not in in_runs}),
                before=self._before,
                notes=record["notes"],
                runs=runs_of(sets),
                arms=arms_of(sets, model_identity(model) if model is not None else None),
                thread_set=thread_set_of(sets),
                monitor=monitor_of(sets),
                metric=metric,
            )
            write_new(self.out, artifact)
            self.line(f"written to {self.out}")
        sys.stdout.write(json.dumps(record, allow_nan=False) + "\n" if stdout is None else stdout)
        sys.stdout.flush()
