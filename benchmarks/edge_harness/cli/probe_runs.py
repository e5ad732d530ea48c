"""A probe's processes and sample sets as the runs and arms of its artifact: shown and compared as a grid's.

A run is a process, or one set of samples that was taken in it (a batch size at a depth, say): its metrics,
its samples, and, where it is the whole process, its memory over time and its phases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.edge_harness.artifact.schema import (
    ArmProvenance,
    MemoryPoint,
    ModelIdentity,
    Monitor,
    Run,
    ThreadSet,
)
from benchmarks.edge_harness.cli.process_watch import Watched, thinned
from benchmarks.edge_harness.grid.agreement import read_verification
from benchmarks.edge_harness.grid.cores import core_list
from benchmarks.edge_harness.grid.runner import phases
from benchmarks.edge_harness.metrics import METRICS, is_bookkeeping
from benchmarks.edge_harness.provenance.scrub import scrub, scrub_values

# A record has settings beside its figures; what ends in a unit, or is in the table, is a figure.
_UNITS = ("_tps", "_ms", "_s", "_mb", "_gbps", "_bytes", "_share", "_nats")
_SETTINGS = frozenset({"watched_s", "kv_cache_memory_bytes", "buffer_mb"})
# Has a place of its own in a run.
_ELSEWHERE = ("memory", "phases")


@dataclass(frozen=True)
class Child:
    """One process, what it reported, and what was seen of it from outside."""

    command: Sequence[str]
    record: Mapping[str, Any]
    watched: Watched
    cold_cache: bool = False

    @property
    def cores(self) -> list[int]:
        """Where it computed: as it says itself, else where its threads were allowed to."""
        return sorted(self.record.get("cores") or self.watched.cores)


@dataclass(frozen=True)
class SampleSet:
    """``figures``: flat, with ``samples``. ``whole``: nothing else was done in the process."""

    tag: str
    child: Child
    figures: Mapping[str, Any]
    pass_no: int = 1
    whole: bool = True
    cold_cache: bool | None = field(default=None)

    @classmethod
    def of(cls, tag: str, child: Child) -> SampleSet:
        return cls(tag, child, child.record)


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The figures among the numbers of a record."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and not (name in _SETTINGS or is_bookkeeping(name))
        and (name in METRICS or name.endswith(_UNITS))
    }


def runs_of(sets: Sequence[SampleSet]) -> list[Run]:
    """In the order in which the sets were measured."""
    return [_run(one, position) for position, one in enumerate(sets, 1)]


def arms_of(sets: Sequence[SampleSet], model: ModelIdentity | None) -> list[ArmProvenance]:
    """One for each tag, from the last of its processes."""
    return [_arm(one, model) for one in {one.tag: one for one in sets}.values()]


def thread_set_of(sets: Sequence[SampleSet]) -> ThreadSet:
    """The cores of all processes; which had which is noted where they differ."""
    by_tag = {one.tag: one.child.cores for one in sets}
    different = {tuple(cores) for cores in by_tag.values()}
    note = None
    if len(different) > 1:
        note = "; ".join(f"{tag}: {core_list(cores)}" for tag, cores in by_tag.items())
    cores = sorted({core for found in different for core in found})
    return ThreadSet(cores=cores, memory_nodes=None, memory_bound=False, note=note)


def monitor_of(sets: Sequence[SampleSet]) -> Monitor | None:
    """What watching cost, over all processes."""
    children = {id(one.child): one.child.watched for one in sets}.values()
    wall_s = sum(watched.wall_s for watched in children)
    if wall_s == 0:
        return None
    cpu_s = sum(watched.monitor_cpu_s for watched in children)
    return Monitor(
        samples=sum(watched.monitor_samples for watched in children),
        cpu_s=round(cpu_s, 6),
        wall_s=round(wall_s, 6),
        share_of_a_core=round(cpu_s / wall_s, 6),
    )


def _run(one: SampleSet, position: int) -> Run:
    watched, record = one.child.watched, one.child.record
    verification = read_verification(record)
    reported = {name: value for name, value in one.figures.items() if name not in _ELSEWHERE}
    return Run(
        tag=one.tag,
        pass_no=one.pass_no,
        position=position,
        cold_cache=one.child.cold_cache if one.cold_cache is None else one.cold_cache,
        started_utc=watched.started_utc,
        wall_s=round(watched.wall_s, 6),
        exit_code=0,
        status="ok",
        reason=None,
        metrics=metrics_of(one.figures),
        reported=scrub_values(reported | {"cores": one.child.cores}),
        verification=None if isinstance(verification, str) else verification,
        disturbance=watched.disturbance,
        load_before=watched.load_before,
        load_after=watched.load_after,
        memory=_memory(one) if one.whole else [],
        phases=phases(record.get("phases")) if one.whole else [],
        stderr_tail=None,
    )


def _memory(one: SampleSet) -> list[MemoryPoint]:
    """The record's own course where it has one: its times are those of the phases."""
    own = one.child.record.get("memory")
    if not own:
        return one.child.watched.memory
    names = MemoryPoint.model_fields
    return thinned([MemoryPoint(**{name: point[name] for name in names}) for point in own])


def _arm(one: SampleSet, model: ModelIdentity | None) -> ArmProvenance:
    watched, record = one.child.watched, one.child.record
    process = record.get("process") or {}
    kernels = record.get("kernels")
    return ArmProvenance(
        tag=one.tag,
        adapter=None,
        command=[scrub(part) for part in one.child.command],
        # A program that sets variables for its engine says what they were in the end.
        env=scrub_values(process.get("environment") or watched.environment),
        model=model,
        kernels=dict(kernels) if kernels else None,
        peer=None,
        allocator=watched.allocator or process.get("allocator"),
        openmp_runtimes=watched.openmp_runtimes or list(process.get("openmp_runtimes") or []),
        threads=watched.threads or process.get("threads"),
        unavailable=None,
        allowed_cores=watched.cores,
    )
