"""The artifact of a grid, from its runs on record."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from benchmarks.edge_harness.artifact.file import rename_new, write_new
from benchmarks.edge_harness.artifact.schema import (
    FORMAT,
    ArmProvenance,
    Artifact,
    ModelIdentity,
    Monitor,
    Peer,
    Run,
    ThreadSet,
)
from benchmarks.edge_harness.grid.figures import (
    CONTROL_SUFFIX,
    RULES,
    figures,
    inconsistencies,
)
from benchmarks.edge_harness.grid.journal import Entry, Header
from benchmarks.edge_harness.grid.runner import Plan
from benchmarks.edge_harness.metrics import metric
from benchmarks.edge_harness.provenance.collect import collect_provenance
from benchmarks.edge_harness.provenance.scrub import scrub, scrub_values
from benchmarks.edge_harness.spec import Spec
from benchmarks.edge_harness.statistics.expectations import Expectations, check, fails

# Of the notes: where all the cores of this process are under test, what watches takes its share of them.
SAME_CORES = "watched from the same cores"

_R = TypeVar("_R", ModelIdentity, Peer)


def with_control(spec: Spec) -> Spec:
    """``spec`` with its first arm once more, so that the grid shows what chance does to it."""
    first = spec.arms[0]
    copy = first.model_copy(update={"tag": first.tag + CONTROL_SUFFIX})
    return Spec.model_validate(spec.model_copy(update={"arms": [*spec.arms, copy]}).model_dump())


def published(spec: Spec) -> Spec:
    """``spec`` as an artifact may hold it, without names of a user's folders."""
    return Spec.model_validate(scrub_values(spec.model_dump(mode="json")))


def is_watched_apart(plan: Plan) -> bool:
    """Whether this process has a core that is not under test."""
    return bool(os.sched_getaffinity(0) - set(plan.placement.cores))


def monitor_cost(entries: Sequence[Entry]) -> Monitor | None:
    """What watching took, over all runs."""
    wall_s = sum(entry.run.wall_s for entry in entries)
    cpu_s = sum(entry.seen.monitor_cpu_s for entry in entries)
    if wall_s == 0:
        return None
    samples = sum(entry.seen.monitor_samples for entry in entries)
    return Monitor(
        samples=samples,
        cpu_s=round(cpu_s, 6),
        wall_s=round(wall_s, 6),
        share_of_a_core=round(cpu_s / wall_s, 6),
    )


def assemble(
    plan: Plan,
    header: Header,
    entries: Sequence[Entry],
    command: Sequence[str],
    interrupted: int | None,
    expectations: Expectations | None,
    build: str | None,
) -> Artifact:
    """``interrupted``: the exit code of a grid that was stopped. ``build``: as it is at the end."""
    runs = [entry.run for entry in entries]
    spec = published(plan.spec)
    refusal = None
    if build != header.build:
        refusal = f"the build changed between the first run and the last: {header.build}, then {build}"
    found = figures(runs, spec, plan.metric, refusal)
    declared = spec.declared_metrics()
    checks = [] if expectations is None else check(expectations, found.summaries, declared)
    notes = _notes(plan, header, entries)
    return Artifact(
        format=FORMAT,
        kind="grid",
        title=spec.title or " / ".join(arm.tag for arm in spec.arms),
        notes=[*([f"nothing is compared: {refusal}"] if refusal else []), *notes],
        complete=interrupted is None,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=[scrub(part) for part in command],
        exit_code=_exit_code(plan, entries, fails(checks)) if interrupted is None else interrupted,
        spec=spec,
        spec_sha256=spec.sha256(),
        metric=plan.metric,
        provenance=collect_provenance(
            header.load_before, _thread_set(plan, entries), monitor_cost(entries), header.software
        ),
        arms=[_arm(plan, tag, entries) for tag in plan.programs],
        runs=runs,
        summaries=found.summaries,
        comparisons=found.comparisons,
        noise_floor=found.noise_floor,
        checks=checks,
        result=None,
        rules=RULES,
        refusal=refusal,
    )


def write_beside_incomplete(out: Path, artifact: Artifact) -> Path | None:
    """Write the artifact. An incomplete one of the same grid that has the name gives it up and is kept under
    another, which is returned."""
    if not os.path.lexists(out):
        write_new(out, artifact)
        return None
    names = (out.with_name(f"{out.stem}.incomplete-{number}{out.suffix}") for number in itertools.count(1))
    moved = next(name for name in names if not os.path.lexists(name))
    rename_new(out, moved)
    write_new(out, artifact)
    return moved


def _exit_code(plan: Plan, entries: Sequence[Entry], check_fails: bool) -> int:
    """1 when an arm has no run that counts, or a figure fell out of its band."""
    well = {entry.run.tag for entry in entries if entry.run.status == "ok"}
    tags = [tag for tag, program in plan.programs.items() if program.unavailable is None]
    return int(check_fails or not tags or any(tag not in well for tag in tags))


def _thread_set(plan: Plan, entries: Sequence[Entry]) -> ThreadSet:
    placement = plan.placement
    problems = [entry.seen.memory_problem for entry in entries if entry.seen.memory_problem]
    notes = [placement.note, *dict.fromkeys(problems), None if is_watched_apart(plan) else SAME_CORES]
    return ThreadSet(
        cores=list(placement.cores),
        memory_nodes=None if placement.memory_nodes is None else list(placement.memory_nodes),
        memory_bound=placement.bind_memory and bool(entries) and not problems,
        note="; ".join(note for note in notes if note) or None,
    )


def _arm(plan: Plan, tag: str, entries: Sequence[Entry]) -> ArmProvenance:
    """What the runs report of themselves is taken from the last that counts; that others say something else
    is noted, and refuses the arm's comparisons."""
    program = plan.programs[tag]
    arm = next(arm for arm in plan.spec.arms if arm.tag == tag)
    mine = [entry for entry in entries if entry.run.tag == tag]
    reported = next((entry.run.reported for entry in reversed(mine) if entry.run.status == "ok"), {})
    threads = [entry.seen.threads for entry in mine if entry.seen.threads is not None]
    return ArmProvenance(
        tag=tag,
        adapter=arm.adapter,
        command=[scrub(part) for part in program.command],
        env={name: scrub(value) for name, value in program.environment.items()},
        model=_valid(ModelIdentity, reported.get("model")),
        kernels=_kernels(reported.get("kernels")),
        peer=program.peer or _valid(Peer, reported.get("peer")),
        allocator=next((entry.seen.allocator for entry in reversed(mine) if entry.seen.allocator), None),
        openmp_runtimes=sorted({name for entry in mine for name in entry.seen.openmp_runtimes}),
        threads=max(threads, default=None),
        unavailable=program.unavailable,
        allowed_cores=sorted({core for entry in mine for core in entry.seen.allowed_cores}) or None,
    )


def _valid(record: type[_R], value: object) -> _R | None:
    try:
        return record.model_validate(value)
    except ValidationError:
        return None


def _kernels(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict) or not all(type(count) is int for count in value.values()):
        return None
    return {str(name): count for name, count in value.items()}


def _notes(plan: Plan, header: Header, entries: Sequence[Entry]) -> list[str]:
    notes = list(header.notes)
    if not is_watched_apart(plan):
        notes.append(SAME_CORES)
    notes += [entry.seen.memory_problem for entry in entries if entry.seen.memory_problem]
    named = metric(plan.metric, plan.spec.declared_metrics())
    runs: list[Run] = [entry.run for entry in entries]
    for tag, program in plan.programs.items():
        if program.unavailable is not None:
            notes.append(f"{tag}: not run: {program.unavailable}")
        mine = [entry for entry in entries if entry.run.tag == tag]
        for entry in mine:
            reported = entry.run.reported.get("notes")
            notes += [f"{tag}: {note}" for note in (reported if isinstance(reported, list) else [])]
        lost = sum(entry.run.status != "ok" for entry in mine)
        if lost:
            notes.append(f"{tag}: {lost} of {len(mine)} runs do not count; each has its reason")
        well = [entry.run for entry in mine if entry.run.status == "ok"]
        if named.needs_warm_cache and well and all(run.cold_cache for run in well):
            notes.append(f"{tag}: no run with a warm compile cache, and {named.name} counts no other")
        notes += [f"{tag}: not comparable: its runs differ in {what}" for what in inconsistencies(runs, tag)]
        outlived = sorted({name for entry in mine for name in entry.seen.outlived})
        if outlived:
            notes.append(f"{tag}: left processes behind, which were ended: {', '.join(outlived)}")
        unread = sorted({why for entry in mine for why in entry.seen.unread})
        if unread:
            notes.append(f"{tag}: memory that the harness sampled is incomplete: {', '.join(unread)}")
    marked = sum(entry.run.disturbance is not None and entry.run.disturbance.marked for entry in entries)
    if marked:
        notes.append(f"{marked} of {len(entries)} runs were disturbed: others were on their cores")
    return [scrub(note) for note in dict.fromkeys(notes)]
