"""One call of ``run``: what is refused before anything starts, the grid, and its artifact."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from benchmarks.edge_harness.artifact.file import read, refuse_existing
from benchmarks.edge_harness.artifact.schema import Artifact
from benchmarks.edge_harness.grid import journal as journals
from benchmarks.edge_harness.grid import leftovers, preflight
from benchmarks.edge_harness.grid.assemble import (
    CONTROL_SUFFIX,
    SAME_CORES,
    assemble,
    is_watched_apart,
    published,
    with_control,
    write_beside_incomplete,
)
from benchmarks.edge_harness.grid.child import beside
from benchmarks.edge_harness.grid.cores import core_list, place
from benchmarks.edge_harness.grid.host_lock import HostLock
from benchmarks.edge_harness.grid.journal import Entry, Header, Identity, Journal, Recorded, Started
from benchmarks.edge_harness.grid.monitors import Monitors, NativeMonitors
from benchmarks.edge_harness.grid.program import Program
from benchmarks.edge_harness.grid.runner import Interrupted, Plan, run_grid
from benchmarks.edge_harness.grid.stops import stops_ignored, stops_unwind
from benchmarks.edge_harness.grid.terminal import TerminalProgress, print_summary, verdict_line
from benchmarks.edge_harness.metrics import METRICS, SAMPLED
from benchmarks.edge_harness.provenance.build import build_text
from benchmarks.edge_harness.provenance.collect import collect_load, collect_software
from benchmarks.edge_harness.spec import Arm, Spec, read_spec
from benchmarks.edge_harness.statistics.expectations import read_expectations, require_bands
from vllm_omni import monitor, settings
from vllm_omni.errors import OmniError


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
    if expectations is not None and options.check is not None:
        require_bands(expectations, plan.spec.declared_metrics(), options.check)
    _refuse_another(options)
    with ExitStack() as stack:
        notes = _alone(stack.enter_context(HostLock(options.out)), options)
        identity = _identity(plan)
        journal: Journal | None = None
        recorded: Recorded | None = None
        if options.resume:
            journal, recorded = Journal.resume(journals.journal_path(options.out), identity)
            stack.callback(journal.close)
            # Before anybody looks whether the cores are free.
            if recorded.in_flight:
                with stops_ignored():
                    _end_in_flight(recorded.in_flight)
        notes += _free(monitors, plan, options)
        for warning in notes if is_watched_apart(plan) else [*notes, SAME_CORES]:
            console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
        header, entries = _header(plan, identity, notes), list[Entry]()
        if recorded:
            before = recorded.header
            header, entries = before.model_copy(update={"notes": [*before.notes, *notes]}), recorded.entries
            console.print(f"going on after {len(entries)} of {len(plan.slots)} runs")
        if journal is None:
            journal = Journal.create(journals.journal_path(options.out), header)
            stack.callback(journal.close)
        interrupted = _make_runs(plan, journal, entries, monitors, console)
        with stops_ignored():
            command = [sys.executable, *sys.argv]
            artifact = assemble(plan, header, entries, command, interrupted, expectations, build_text())
            moved = write_beside_incomplete(options.out, artifact)
            if artifact.complete:
                journal.remove()
                shutil.rmtree(plan.scratch, ignore_errors=True)
    if moved:
        console.print(f"the incomplete result is now {moved.name}")
    print_summary(console, artifact)
    if interrupted is not None:
        console.print("stopped: the result is marked incomplete; --resume goes on", style="yellow")
    print(json.dumps(_result(options.out, artifact)))
    return artifact.exit_code


def _make_runs(
    plan: Plan, journal: Journal, entries: list[Entry], monitors: Monitors, console: Console
) -> int | None:
    """Make the runs that ``entries`` lacks; the exit code of a grid that was stopped. Every thread of this
    process keeps off the cores under test, the one that paints the progress too."""
    passes, total = plan.spec.passes, len(plan.slots)
    with stops_unwind():
        try:
            with (
                beside(plan.placement.cores),
                TerminalProgress(console, plan.metric, passes, total, len(entries)) as progress,
            ):
                run_grid(plan, journal, entries, monitors, progress)
        except Interrupted as stop:
            return stop.exit_code
        except KeyboardInterrupt:
            return 130
    return None


def _alone(lock: HostLock, options: Options) -> list[str]:
    """What to note when another grid runs on this machine. Raises :class:`OmniError` unless it is allowed."""
    if lock.holder is None:
        return []
    if not options.allow_busy:
        raise OmniError(
            f"another grid runs on this machine ({lock.holder}): expected none: wait for its end, or record "
            "it with --allow-busy"
        )
    return [f"begun while another grid ran on this machine ({lock.holder})"]


def _free(monitors: Monitors, plan: Plan, options: Options) -> list[str]:
    """What to note of busy cores. Raises :class:`OmniError` unless they are allowed."""
    occupied = preflight.look(monitors, plan.placement.cores, [os.getpid()])
    if not occupied.is_too_busy:
        return []
    if not options.allow_busy:
        raise OmniError(
            f"{occupied.sentence}: expected free cores: wait, choose other --cores than "
            f"{core_list(plan.placement.cores)}, or record it with --allow-busy"
        )
    return [f"begun on busy cores: {occupied.sentence}"]


def _identity(plan: Plan) -> Identity:
    return Identity(
        spec_sha256=published(plan.spec).sha256(),
        passes=plan.spec.passes,
        cores=list(plan.placement.cores),
        metric=plan.metric,
        build=build_text(),
        programs_sha256=plan.programs_sha256,
    )


def _header(plan: Plan, identity: Identity, notes: list[str]) -> Header:
    return Header(
        **identity.model_dump(),
        format=journals.FORMAT,
        load_before=collect_load(plan.placement.cores),
        notes=notes,
        software=collect_software(),
    )


def make_plan(options: Options, program: Callable[[Arm], Program]) -> Plan:
    """What the spec and the command line come to. Raises :class:`OmniError`."""
    spec = _with_options(read_spec(options.spec_file), options)
    if spec.metric is None:
        raise OmniError(
            f"{options.spec_file}: metric: expected what the grid is made for, there or as --metric "
            "(for instance tg_tps; sampled.wall_s is there for any command)"
        )
    _require_known(spec.metric, spec)
    for arm in spec.arms:
        # A spec is published with its result.
        secret = next(filter(settings.is_secret, arm.env), None)
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


def _require_known(metric: str, spec: Spec) -> None:
    """Refuse a metric that no run can have, before hours of runs that fail for it. What the command of an arm
    may print cannot be known."""
    known = METRICS | spec.declared_metrics()
    own_commands = any(arm.command is not None for arm in spec.arms)
    if metric in known or (own_commands and not metric.startswith(SAMPLED)):
        return
    near = ", ".join(difflib.get_close_matches(metric, known, n=3))
    raise OmniError(
        f"metric {metric}: expected one of the harness's or of the spec's metrics"
        + (f": {near}?" if near else "")
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


def _end_in_flight(started: Started) -> None:
    """A kill of the harness leaves its child behind."""
    session = None
    try:
        pid, ticks = started.pid, started.start_ticks
        if pid is not None and ticks is not None and monitor.process_start_ticks(pid) == ticks:
            session = pid
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
