"""The artifact of one program's measurement.

Without ``arms`` the measuring process is this one, whose cores, libraries and threads it then carries; who
measures in processes of its own says what those were like.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Literal

from benchmarks.edge_harness.artifact.schema import (
    FORMAT,
    ArmProvenance,
    Artifact,
    Load,
    ModelIdentity,
    Monitor,
    Peer,
    Run,
    ThreadSet,
)
from benchmarks.edge_harness.provenance.collect import collect_provenance, scrub
from benchmarks.edge_harness.provenance.libraries import observed_libraries
from benchmarks.edge_harness.provenance.load import now_utc
from benchmarks.edge_harness.statistics.summary import summarize


def probe_artifact(
    title: str,
    result: dict[str, Any],
    *,
    before: Load,
    kind: Literal["probe", "fidelity"] = "probe",
    notes: Sequence[str] = (),
    complete: bool = True,
    model: ModelIdentity | None = None,
    kernels: dict[str, int] | None = None,
    peer: Peer | None = None,
    runs: Sequence[Run] = (),
    thread_set: ThreadSet | None = None,
    arms: Sequence[ArmProvenance] | None = None,
    monitor: Monitor | None = None,
    metric: str | None = None,
) -> Artifact:
    """``result`` is the measurement's own record; machine and software are collected here. ``before`` is the
    load when the measurement began, ``metric`` what it was made for. ``model``, ``kernels`` and ``peer`` are
    those of this process; ``arms`` have their own."""
    if thread_set is None:
        cores, _ = affinity_of(os.getpid())
        thread_set = ThreadSet(cores=sorted(cores), memory_nodes=None, memory_bound=False, note=None)
    command = [scrub(part) for part in (sys.executable, *sys.argv)]
    provenance = collect_provenance(before, thread_set, monitor)
    if arms is None:
        loaded = observed_libraries(os.getpid())
        arms = [
            ArmProvenance(
                tag=title.partition(":")[0],
                adapter=None,
                command=command,
                env=provenance.software.environment,
                model=model,
                kernels=kernels,
                peer=peer,
                allocator=loaded.allocator,
                openmp_runtimes=loaded.openmp_runtimes,
                threads=len(os.listdir("/proc/self/task")),
                unavailable=None,
            )
        ]
    return Artifact(
        format=FORMAT,
        kind=kind,
        title=title,
        notes=list(notes),
        complete=complete,
        created_utc=now_utc(),
        command=command,
        exit_code=0,
        spec=None,
        spec_sha256=None,
        metric=metric,
        provenance=provenance,
        arms=list(arms),
        runs=list(runs),
        summaries=summarize(runs, {}),
        comparisons=[],
        noise_floor=[],
        checks=[],
        result=result,
    )


def affinity_of(pid: int) -> tuple[set[int], int]:
    """The cores that any thread of process ``pid`` may run on, and how many threads it has. The first thread
    alone says little: an engine keeps it to one core. Nothing of a process that has ended."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return set(), 0
    cores: set[int] = set()
    for thread in threads:
        # Threads come and go.
        with contextlib.suppress(OSError):
            cores |= os.sched_getaffinity(thread)
    return cores, len(threads)
