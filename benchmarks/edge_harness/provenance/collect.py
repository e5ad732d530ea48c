"""Provenance of a whole artifact; the parts live in the files beside this one."""

from __future__ import annotations

from benchmarks.edge_harness.artifact.schema import Load, Monitor, Provenance, Software, ThreadSet
from benchmarks.edge_harness.provenance.load import collect_load
from benchmarks.edge_harness.provenance.machine import collect_machine
from benchmarks.edge_harness.provenance.model import model_identity
from benchmarks.edge_harness.provenance.scrub import scrub
from benchmarks.edge_harness.provenance.software import collect_software

__all__ = [
    "collect_load",
    "collect_machine",
    "collect_provenance",
    "collect_software",
    "model_identity",
    "scrub",
]


def collect_provenance(
    before: Load, thread_set: ThreadSet, monitor: Monitor | None = None, software: Software | None = None
) -> Provenance:
    """Everything of the machine and the software, at the end of a measurement that began at ``before``.
    ``software``: as it was then; left out: as it is now."""
    return Provenance(
        machine=collect_machine(),
        load_before=before,
        load_after=collect_load(thread_set.cores),
        software=software or collect_software(),
        thread_set=thread_set,
        monitor=monitor,
    )
