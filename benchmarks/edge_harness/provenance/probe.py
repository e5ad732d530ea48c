"""The artifact of one program's measurement, with the provenance of the process that took it."""

from __future__ import annotations

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
    Peer,
    Run,
    ThreadSet,
)
from benchmarks.edge_harness.provenance.collect import collect_provenance, scrub
from benchmarks.edge_harness.provenance.libraries import observed_libraries
from benchmarks.edge_harness.provenance.load import now_utc


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
) -> Artifact:
    """``result`` is the measurement's own record; the rest is collected from this process, whose command line
    it gives. ``before`` is the load when the measurement began."""
    cores = sorted(os.sched_getaffinity(0))
    unbound = ThreadSet(cores=cores, memory_nodes=None, memory_bound=False, note=None)
    command = [scrub(part) for part in (sys.executable, *sys.argv)]
    provenance = collect_provenance(before, thread_set or unbound)
    loaded = observed_libraries(os.getpid())
    arm = ArmProvenance(
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
        metric=None,
        provenance=provenance,
        arms=[arm],
        runs=list(runs),
        summaries=[],
        comparisons=[],
        noise_floor=[],
        checks=[],
        result=result,
    )
