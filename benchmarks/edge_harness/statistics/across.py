"""Two result files against each other, which is weaker than two arms of one grid.

Nothing pairs the runs of different files, and what changed between the two sessions (heat, neighbours,
memory layout after a restart) is in the ratio and not in the interval. So everything that is not the software
must be equal before a ratio is given at all, and every verdict's note says what its interval leaves out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from benchmarks.edge_harness.artifact.schema import ArmProvenance, Artifact, Comparison, Machine, Run
from benchmarks.edge_harness.metrics import Metric, metric
from benchmarks.edge_harness.spec import Spec
from benchmarks.edge_harness.statistics.paired import FEWEST_PAIRS, counts, is_marked, unpaired_interval
from benchmarks.edge_harness.statistics.summary import metric_names
from benchmarks.edge_harness.statistics.verdict import (
    NAMED_METRIC_ERROR,
    OTHER_METRICS_ERROR,
    not_comparable,
    verdict,
)
from benchmarks.edge_harness.statistics.verification import disagreement

UNPAIRED_NOTE = (
    "Unpaired: what changed between the two sessions is in the ratio, not in the interval. "
    "The files name the same model of machine, not necessarily the same machine."
)
# The kernel reserves a little more or less of the same memory at each boot.
_MEMORY_TOLERANCE = 0.01
# Options that say where something is written or kept.
_PLACES = ("--out", "--cache-root")


@dataclass(frozen=True)
class Row:
    """One arm's metric in both files."""

    tag: str
    metric: str
    unit: str
    n_a: int
    n_b: int
    median_a: float | None
    median_b: float | None
    comparison: Comparison


def refusal(a: Artifact, b: Artifact) -> str | None:
    """Why no figure of ``a`` may be set against one of ``b``."""
    return next(_refusals(a, b), None)


def compare_artifacts(
    a: Artifact, b: Artifact, name_a: str, name_b: str, named: str | None = None
) -> list[Row]:
    """Every arm and metric that both files have; :func:`refusal` must be ``None``. The names stand for the
    files in the sentences."""
    spec = a.spec
    declared = spec.declared_metrics() if spec else {}
    named = named or a.metric
    names = [name for name in metric_names(a.runs) if name in metric_names(b.runs)]
    if named is None and len(names) == 1:
        named = names[0]
    runs_of_b = {run.tag for run in b.runs}
    tags = [tag for tag in dict.fromkeys(run.tag for run in a.runs) if tag in runs_of_b]
    ranked = {name for name in names if metric(name, declared).direction != "neutral"}
    rows = []
    for name in sorted(names, key=lambda name: name != named):
        error_rate = NAMED_METRIC_ERROR if name == named else OTHER_METRICS_ERROR
        family = len(tags) * (1 if name == named else len(ranked - {named}))
        for tag in tags:
            arms = (_arm(a, tag), _arm(b, tag))
            runs_a, runs_b = ([run for run in artifact.runs if run.tag == tag] for artifact in (a, b))
            # The sample sets of a probe have metrics of their own each.
            if not any(name in run.metrics for run in (*runs_a, *runs_b)):
                continue
            rows.append(
                _row(
                    runs_a,
                    runs_b,
                    metric(name, declared),
                    (f"{tag} in {name_a}", f"{tag} in {name_b}"),
                    1 - error_rate / max(1, family),
                    _arms_differ(*arms) if all(arms) else None,
                    spec,
                )
            )
    return rows


def _row(
    runs_a: list[Run],
    runs_b: list[Run],
    what: Metric,
    labels: tuple[str, str],
    confidence: float,
    why: str | None,
    spec: Spec | None,
) -> Row:
    name, (label_a, label_b) = what.name, labels
    values_a, values_b = (
        [run.metrics[name] for run in runs if counts(run, what)] for runs in (runs_a, runs_b)
    )
    why = why or _runs_refuse(runs_a, runs_b, what, labels, values_a, values_b, spec)
    if why:
        found = not_comparable(name, label_a, label_b, 0, why)
    else:
        found = verdict(
            what,
            label_a,
            label_b,
            0,
            unpaired_interval(values_a, values_b, confidence),
            confidence,
            UNPAIRED_NOTE,
        )
    return Row(
        tag=runs_a[0].tag,
        metric=name,
        unit=what.unit,
        n_a=len(values_a),
        n_b=len(values_b),
        median_a=statistics.median(values_a) if values_a else None,
        median_b=statistics.median(values_b) if values_b else None,
        comparison=found,
    )


def _runs_refuse(
    runs_a: list[Run],
    runs_b: list[Run],
    what: Metric,
    labels: tuple[str, str],
    values_a: list[float],
    values_b: list[float],
    spec: Spec | None,
) -> str | None:
    for runs, values, label in ((runs_a, values_a, labels[0]), (runs_b, values_b, labels[1])):
        if any(run.status == "invalid" for run in runs):
            return f"a run of {label} is invalid"
        # Without pairs a disturbance cannot cancel, so one disturbed run is one too many.
        if any(is_marked(run) for run in runs if counts(run, what)):
            return f"a run of {label} was disturbed, which only pairs within one grid could outweigh"
        if len(values) < FEWEST_PAIRS:
            runs_text = "1 run" if len(values) == 1 else f"{len(values)} runs"
            return f"{runs_text} of {label} that count, expected {FEWEST_PAIRS} or more"
        if min(values) <= 0:
            return f"a ratio needs figures above zero, and {what.name} has others"
    if what.direction == "neutral":
        return f"it is not declared which direction of {what.name} is better"
    relabelled = [run.model_copy(update={"tag": labels[0]}) for run in runs_a]
    relabelled += [run.model_copy(update={"tag": labels[1]}) for run in runs_b]
    mode = spec.verification if spec else "if_reported"
    tolerance_nats = (
        spec.logprob_tolerance_nats if spec else Spec.model_fields["logprob_tolerance_nats"].default
    )
    return disagreement(relabelled, *labels, mode, tolerance_nats)


def _refusals(a: Artifact, b: Artifact) -> Iterator[str]:
    for letter, artifact in (("A", a), ("B", b)):
        if artifact.retraction is not None:
            yield f"{letter} is retracted: {artifact.retraction.reason}"
        if not artifact.complete:
            yield f"{letter} is incomplete: the measurement ended before its last run"
    if a.kind != b.kind:
        yield f"the kinds differ: {a.kind} and {b.kind}"
    yield from _machines_differ(a.provenance.machine, b.provenance.machine)
    threads_a, threads_b = a.provenance.thread_set, b.provenance.thread_set
    if threads_a.cores != threads_b.cores:
        yield f"the cores differ: {threads_a.cores} and {threads_b.cores}"
    if (threads_a.memory_nodes, threads_a.memory_bound) != (threads_b.memory_nodes, threads_b.memory_bound):
        yield "the memory binding differs"
    if a.spec_sha256 != b.spec_sha256:
        yield "the specs differ"
    if a.spec is None and _workload(a) != _workload(b):
        yield "the workloads differ (commands of the arms)"
    if not {run.tag for run in a.runs} & {run.tag for run in b.runs}:
        yield "no arm has runs in both"


def _machines_differ(a: Machine, b: Machine) -> Iterator[str]:
    left, right = a.model_dump(), b.model_dump()
    for key, value in left.items():
        if key == "numa_nodes":
            differ = [node.cpus for node in a.numa_nodes] != [node.cpus for node in b.numa_nodes]
        elif key == "memory_bytes":
            differ = abs(value - right[key]) > _MEMORY_TOLERANCE * max(value, right[key])
        else:
            differ = value != right[key]
        if differ:
            shown = "" if isinstance(value, list | dict) else f": {value} and {right[key]}"
            yield f"the machines differ in {key}{shown}"


def _workload(artifact: Artifact) -> dict[str, list[str]]:
    """By arm; whose interpreter it is and in which folders it keeps things is no part of the work."""
    return {arm.tag: _work(arm.command) for arm in artifact.arms}


def _work(command: list[str]) -> list[str]:
    program, *arguments = command or [""]
    left_out = {at + 1 for at, argument in enumerate(arguments) if argument in _PLACES}
    kept = [argument for at, argument in enumerate(arguments) if at not in left_out]
    return [PurePath(program).name, *(one for one in kept if one not in _PLACES)]


def _arm(artifact: Artifact, tag: str) -> ArmProvenance | None:
    """Paths of a fidelity measurement have tags of their own and one arm."""
    only = artifact.arms[0] if len(artifact.arms) == 1 else None
    return next((arm for arm in artifact.arms if arm.tag == tag), only)


def _arms_differ(a: ArmProvenance | None, b: ArmProvenance | None) -> str | None:
    model_a, model_b = (arm.model if arm else None for arm in (a, b))
    if model_a != model_b:
        names = [model.id if model else "none" for model in (model_a, model_b)]
        return (
            f"the models differ: {names[0]} and {names[1]}" if names[0] != names[1] else "the weights differ"
        )
    return None
