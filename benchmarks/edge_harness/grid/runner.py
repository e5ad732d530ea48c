"""The grid: every arm in every pass, one fresh process at a time, each on record before the next begins."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.edge_harness.artifact.schema import MemoryPoint, Phase, Run
from benchmarks.edge_harness.grid.agreement import read_verification, why_invalid
from benchmarks.edge_harness.grid.caches import CompileCaches
from benchmarks.edge_harness.grid.child import Child, Outcome, child_environment, run_child
from benchmarks.edge_harness.grid.cores import Placement, core_list
from benchmarks.edge_harness.grid.disturbance import disturbance
from benchmarks.edge_harness.grid.journal import Entry, Journal, Seen, Started
from benchmarks.edge_harness.grid.monitors import Monitors
from benchmarks.edge_harness.grid.order import Slot, slots
from benchmarks.edge_harness.grid.output import Output, read_output
from benchmarks.edge_harness.grid.program import Program
from benchmarks.edge_harness.metrics import SAMPLED
from benchmarks.edge_harness.provenance.scrub import scrub, scrub_values
from benchmarks.edge_harness.spec import Arm, Spec
from vllm_omni import monitor

MB = 1e6
# Points of memory over time that an artifact keeps of a run.
MEMORY_POINTS = 150


@dataclass(frozen=True)
class Plan:
    """``spec`` is what runs: the command line's options are in it, and the control arm. ``scratch`` takes the
    programs' output and their compile caches."""

    spec: Spec
    metric: str
    placement: Placement
    programs: Mapping[str, Program]
    scratch: Path

    @property
    def slots(self) -> list[Slot]:
        tags = [arm.tag for arm in self.spec.arms if self.programs[arm.tag].unavailable is None]
        return slots(tags, self.spec.passes) if tags else []

    @property
    def programs_sha256(self) -> str:
        """Of what runs as it is here: the published spec has no folders, and two of them may look alike."""
        models = {arm.tag: arm.model for arm in self.spec.arms}
        content = [
            [tag, program.command, program.environment, models.get(tag), program.unavailable is None]
            for tag, program in self.programs.items()
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Progress:
    """Told what happens; this one says nothing."""

    def starting(self, slot: Slot, done: int, total: int) -> None:
        pass

    def finished(self, entry: Entry, done: int, total: int) -> None:
        pass


class Interrupted(Exception):
    """The grid was asked to stop; what has finished stands. ``exit_code`` is the process's."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def run_grid(
    plan: Plan,
    journal: Journal,
    done: list[Entry],
    monitors: Monitors,
    progress: Progress,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make every run of ``plan`` that ``done`` lacks, and append it there and to the journal.

    Raises :class:`Interrupted` on Ctrl-C or a termination, when the run in flight has been ended. The caller
    keeps itself off the cores (:func:`beside`), with every thread that it has.
    """
    arms = {arm.tag: arm for arm in plan.spec.arms}
    warm = {entry.run.tag for entry in done if entry.run.exit_code == 0}
    caches = CompileCaches(plan.scratch / "caches", warm)
    made = {(entry.run.pass_no, entry.run.tag) for entry in done}
    todo = [slot for slot in plan.slots if (slot.pass_no, slot.tag) not in made]
    total = len(plan.slots)
    try:
        for number, slot in enumerate(todo):
            if number:
                sleep(plan.spec.settle_s)
            progress.starting(slot, len(done), total)
            entry = _run(plan, arms[slot.tag], slot, caches, journal, monitors)
            journal.finished(entry)
            done.append(entry)
            progress.finished(entry, len(done), total)
    except KeyboardInterrupt:
        raise Interrupted(130) from None
    except SystemExit as error:
        raise Interrupted(error.code if isinstance(error.code, int) else 1) from None


def _run(
    plan: Plan, arm: Arm, slot: Slot, caches: CompileCaches, journal: Journal, monitors: Monitors
) -> Entry:
    program = plan.programs[arm.tag]
    token = uuid.uuid4().hex
    cache_variables, cold = caches.prepare(arm.tag)
    # An arm's own variables are last: what it sets, it means.
    environment = child_environment(cache_variables, program.environment)
    child = Child(
        program.command, environment, plan.placement, plan.spec.timeout_s, token, plan.scratch / "run"
    )

    def starting() -> None:
        # Before the spawn: a kill in between leaves a process that only its token tells.
        journal.started(Started(tag=arm.tag, pass_no=slot.pass_no, token=token, pid=None, start_ticks=None))

    def started(pid: int) -> None:
        try:
            ticks = monitor.process_start_ticks(pid)
        except OSError:
            ticks = None
        journal.started(Started(tag=arm.tag, pass_no=slot.pass_no, token=token, pid=pid, start_ticks=ticks))

    load_before = _load()
    outcome = run_child(child, monitors, started, starting)
    load_after = _load()
    if outcome.exit_code == 0:
        caches.filled(arm.tag)
    output = read_output(outcome.stdout) if outcome.stdout.exists() else Output(problem="it did not run")
    metrics = output.metrics | _sampled(outcome)
    status, reason = judge(arm, plan.spec, plan.metric, outcome.problem, output, metrics)
    elsewhere = set(outcome.libraries.allowed_cores) - set(plan.placement.cores)
    if status == "ok" and elsewhere:
        status = "invalid"
        reason = (
            f"a thread could run on cores {core_list(elsewhere)}, outside --cores "
            f"{core_list(plan.placement.cores)}: nothing was watched there"
        )
    verification = read_verification(output.reported)
    return Entry(
        run=Run(
            tag=arm.tag,
            pass_no=slot.pass_no,
            position=slot.position,
            cold_cache=cold and caches.holds_files(arm.tag),
            started_utc=outcome.started_utc,
            wall_s=round(outcome.wall_s, 6),
            exit_code=outcome.exit_code,
            status=status,
            reason=None if reason is None else scrub(reason),
            metrics=metrics,
            reported=scrub_values(output.reported),
            verification=None if isinstance(verification, str) else verification,
            disturbance=disturbance(outcome.cores, outcome.wall_s, len(plan.placement.cores)),
            load_before=load_before,
            load_after=load_after,
            memory=_memory(outcome),
            phases=phases(output.reported.get("phases")),
            stderr_tail=_log_of(outcome) if status != "ok" else None,
        ),
        seen=Seen(
            allocator=outcome.libraries.allocator,
            openmp_runtimes=outcome.libraries.openmp_runtimes,
            threads=outcome.memory.threads,
            outlived=outcome.outlived,
            monitor_samples=outcome.memory.samples + outcome.cores.samples,
            monitor_cpu_s=outcome.memory.own_cpu_s + outcome.cores.own_cpu_s + outcome.libraries.own_cpu_s,
            memory_problem=outcome.memory_problem,
            unread=list(outcome.memory.problems),
            allowed_cores=outcome.libraries.allowed_cores,
        ),
    )


def _log_of(outcome: Outcome) -> str | None:
    return None if outcome.stderr_tail is None else scrub(outcome.stderr_tail)


def judge(
    arm: Arm, spec: Spec, metric: str, problem: str | None, output: Output, metrics: Mapping[str, float]
) -> tuple[Literal["ok", "failed", "invalid"], str | None]:
    """Status and reason of a run. Without the metric that the grid is made for, an exit code of 0 is a
    failure; so is a report that is cut off, whatever was sampled."""
    if problem is not None:
        return "failed", problem
    if output.cut_off:
        return "failed", output.problem
    if metric not in metrics:
        if output.problem is not None:
            return "failed", output.problem
        if metric in output.reported:
            return "failed", f"{metric}: expected a number, found {output.reported[metric]!r:.40}"
        names = ", ".join(sorted(output.metrics)) or "none"
        return "failed", f"no metric {metric} in the output, which has {names:.200}"
    reason = why_invalid(arm, spec, output.reported)
    return ("ok", None) if reason is None else ("invalid", reason)


def phases(reported: Any) -> list[Phase]:
    """The program's phases; what is not one is left in ``reported``."""
    found = []
    for item in reported if isinstance(reported, list) else []:
        try:
            phase = Phase(**{name: item[name] for name in Phase.model_fields if name in item})
        except (TypeError, ValueError):
            continue
        figures = (phase.t_s, phase.rss_anon_mb or 0, phase.pss_anon_mb or 0)
        if all(map(math.isfinite, figures)):
            found.append(phase)
    return found


def _sampled(outcome: Outcome) -> dict[str, float]:
    """What was seen from outside; nothing of a process that never started."""
    if outcome.wall_s == 0:
        return {}
    memory = outcome.memory
    found = {"wall_s": outcome.wall_s, "cpu_s": outcome.cpu_s}
    if memory.last_anon_bytes is not None:
        found["rss_anon_tree_mb"] = memory.last_anon_bytes / MB
    if memory.peak_anon_bytes is not None:
        found["peak_rss_anon_tree_mb"] = memory.peak_anon_bytes / MB
    if memory.peak_file_bytes is not None:
        found["peak_rss_file_tree_mb"] = memory.peak_file_bytes / MB
    if memory.peak_processes is not None:
        found["peak_processes"] = float(memory.peak_processes)
    return {SAMPLED + name: round(value, 6) for name, value in found.items()}


def _memory(outcome: Outcome) -> list[MemoryPoint]:
    """At most :data:`MEMORY_POINTS`; of neighbours that become one the highest stays, so that no peak is
    lost."""
    points = outcome.memory.points
    stride = max(1, -(-len(points) // MEMORY_POINTS))
    kept = [
        max(points[start : start + stride], key=lambda point: point[1])
        for start in range(0, len(points), stride)
    ]
    return [
        MemoryPoint(
            t_s=round(t_s, 3),
            rss_anon_mb=round(anon / MB, 3),
            rss_file_mb=round(file / MB, 3),
            processes=processes,
        )
        for t_s, anon, file, processes in kept
    ]


def _load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]
