"""One call of ``run``: what is refused before anything starts, the grid, and its artifact."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pydantic import ValidationError
from rich.console import Console

from benchmarks.edge_harness.artifact.file import read, refuse_existing
from benchmarks.edge_harness.artifact.schema import Artifact
from benchmarks.edge_harness.grid import journal as journals
from benchmarks.edge_harness.grid import leftovers, preflight
from benchmarks.edge_harness.grid.assemble import (
    CONTROL_SUFFIX,
    assemble,
    published,
    with_control,
    write_beside_incomplete,
)
from benchmarks.edge_harness.grid.cores import core_list, place
from benchmarks.edge_harness.grid.journal import Header, Journal, Recorded, Started
from benchmarks.edge_harness.grid.monitors import Monitors, NativeMonitors
from benchmarks.edge_harness.grid.program import Program
from benchmarks.edge_harness.grid.runner import Interrupted, Plan, run_grid
from benchmarks.edge_harness.grid.terminal import TerminalProgress, print_summary, verdict_line
from benchmarks.edge_harness.provenance.collect import collect_load, collect_software
from benchmarks.edge_harness.spec import Arm, Spec, read_spec
from benchmarks.edge_harness.statistics.expectations import read_expectations
from vllm_omni import monitor
from vllm_omni.errors import OmniError

# A spec is published with its result.
_SECRET = re.compile(r"(^|_)(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)($|_)", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """The command line; what is ``None`` the spec says."""

    spec_file: Path
    out: Path
    passes: int | None = None
    metric: str | None = None
    cores: str | None = None
    control: bool = False
    check: Path | None = None
    resume: bool = False
    allow_busy: bool = False
    timeout_s: float | None = None
    settle_s: float | None = None


def run(options: Options, program: Callable[[Arm], Program], monitors: Monitors | None = None) -> int:
    """The exit code. Raises :class:`OmniError` before the first run for whatever the user can put right."""
    monitors = monitors or NativeMonitors()
    console = Console(stderr=True, highlight=False, markup=False)
    plan = make_plan(options, program)
    expectations = read_expectations(options.check) if options.check else None
    _refuse_another(options)
    occupied = preflight.look(monitors, plan.placement.cores, [os.getpid()])
    notes = []
    if occupied.is_too_busy:
        if not options.allow_busy:
            raise OmniError(
                f"{occupied.sentence}: expected free cores: wait, choose other --cores than "
                f"{core_list(plan.placement.cores)}, or record it with --allow-busy"
            )
        notes.append(f"begun on busy cores: {occupied.sentence}")
        console.print(f"warning: {occupied.sentence}", style="yellow", soft_wrap=True)
    header = Header(
        format=journals.FORMAT,
        spec_sha256=published(plan.spec).sha256(),
        passes=plan.spec.passes,
        cores=list(plan.placement.cores),
        metric=plan.metric,
        build=_build(),
        load_before=collect_load(plan.placement.cores),
        notes=notes,
    )
    journal, recorded = _open(options, header)
    entries = recorded.entries if recorded else []
    if recorded:
        header = _continued(header, recorded)
        if recorded.in_flight:
            _end_in_flight(recorded.in_flight)
        console.print(f"going on after {len(entries)} of {len(plan.slots)} runs")
    interrupted: int | None = None
    with _stops_unwind():
        try:
            with TerminalProgress(
                console, plan.metric, plan.spec.passes, len(plan.slots), len(entries)
            ) as progress:
                run_grid(plan, journal, entries, monitors, progress)
        except Interrupted as stop:
            interrupted = stop.exit_code
        except KeyboardInterrupt:
            interrupted = 130
    with _stops_ignored():
        artifact = assemble(plan, header, entries, [sys.executable, *sys.argv], interrupted, expectations)
        moved = write_beside_incomplete(options.out, artifact)
        if artifact.complete:
            journal.remove()
            shutil.rmtree(plan.scratch, ignore_errors=True)
        journal.close()
    if moved:
        console.print(f"the incomplete result is now {moved.name}")
    print_summary(console, artifact)
    if interrupted is not None:
        console.print("stopped: the result is marked incomplete; --resume goes on", style="yellow")
    print(json.dumps(_result(options.out, artifact)))
    return artifact.exit_code


def make_plan(options: Options, program: Callable[[Arm], Program]) -> Plan:
    """What the spec and the command line come to. Raises :class:`OmniError`."""
    spec = _with_options(read_spec(options.spec_file), options)
    if spec.metric is None:
        raise OmniError(
            f"{options.spec_file}: metric: expected what the grid is made for, there or as --metric "
            "(for instance tg_tps; sampled.wall_s is there for any command)"
        )
    for arm in spec.arms:
        secret = next((name for name in arm.env if _SECRET.search(name)), None)
        if secret:
            raise OmniError(
                f"{options.spec_file}: arm {arm.tag}: env {secret}: expected no secrets, which would be "
                "published with the result: export it instead"
            )
    placement = place(spec.cores)
    return Plan(
        spec=spec,
        metric=spec.metric,
        placement=placement,
        programs={arm.tag: program(arm) for arm in spec.arms},
        scratch=options.out.with_name(f"{options.out.name}.work"),
    )


def _with_options(spec: Spec, options: Options) -> Spec:
    given = {
        name: value
        for name in ("passes", "metric", "cores", "timeout_s", "settle_s")
        if (value := getattr(options, name)) is not None
    }
    try:
        spec = Spec.model_validate(spec.model_dump() | given)
        return with_control(spec) if options.control else spec
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if name in given:
            raise OmniError(f"--{name.replace('_', '-')} {given[name]}: {first['msg']}") from error
        raise OmniError(
            f"--control: {options.spec_file}: expected no arm {spec.arms[0].tag}{CONTROL_SUFFIX}: "
            f"{first['msg']}"
        ) from error


def _refuse_another(options: Options) -> None:
    """A result, or the runs of another grid, under the name that this one is to have."""
    if not (options.resume and options.out.exists() and not read(options.out).complete):
        refuse_existing(options.out)
    path = journals.journal_path(options.out)
    if options.resume:
        journals.expect(path)
    else:
        journals.refuse(path)


def _open(options: Options, header: Header) -> tuple[Journal, Recorded | None]:
    path = journals.journal_path(options.out)
    if not options.resume:
        return Journal.create(path, header), None
    return Journal.resume(path, header)


def _build() -> str:
    software = collect_software()
    dirty = " with changes" if software.git_dirty else ""
    library = (software.library_sha256 or "none")[:12]
    return f"commit {(software.git_commit or 'unknown')[:12]}{dirty}, library {library}"


def _continued(header: Header, recorded: Recorded) -> Header:
    """The grid began when its first run did; a build that has changed since is said above everything."""
    before = recorded.header
    notes = [*before.notes, *header.notes]
    if before.build != header.build:
        notes.append(f"the build changed during the grid: {before.build}, then {header.build}")
    return before.model_copy(update={"notes": notes})


def _end_in_flight(started: Started) -> None:
    """A kill of the harness leaves its child behind."""
    session = None
    try:
        if (
            started.start_ticks is not None
            and monitor.process_start_ticks(started.pid) == started.start_ticks
        ):
            session = started.pid
    except OSError:
        # The program has ended; what it started may still carry the token.
        pass
    leftovers.end(session, started.token)


def _result(out: Path, artifact: Artifact) -> dict[str, object]:
    return {
        "artifact": str(out),
        "complete": artifact.complete,
        "metric": artifact.metric,
        "medians": {row.tag: row.median for row in artifact.summaries if row.metric == artifact.metric},
        "verdicts": [verdict_line(row) for row in artifact.comparisons if row.metric == artifact.metric],
    }


@contextmanager
def _stops_unwind() -> Iterator[None]:
    """A termination or a lost terminal ends the run in flight and the grid in order, as Ctrl-C does."""
    with _handlers({signal.SIGTERM: _stop, signal.SIGHUP: _stop}):
        yield


@contextmanager
def _stops_ignored() -> Iterator[None]:
    """While the result is written, which takes a second or two."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _handlers(dict.fromkeys(names, signal.SIG_IGN)):
        yield


@contextmanager
def _handlers(wanted: dict[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        # Signals are the main thread's; a caller in another thread keeps its own.
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
