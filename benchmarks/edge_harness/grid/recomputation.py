"""Whether the figures of a grid on file are those that its runs give, and its runs all that it asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.edge_harness.artifact.schema import Artifact, Record
from benchmarks.edge_harness.grid.figures import RULES, figures

_TOLERANCE = 1e-9
# Programs that are this project's: they always tell which kernels ran. Another engine may not know.
_TELL_KERNELS = frozenset({"ours", "vllm-stock", "vllm-zentorch"})


def contradictions(artifact: Artifact) -> Iterator[str]:
    """What is wrong with a grid that is valid by its schema; nothing of other kinds."""
    if artifact.kind != "grid" or artifact.spec is None:
        return
    yield from _arms(artifact)
    yield from _runs(artifact)
    if artifact.rules is not None and not 1 <= artifact.rules <= RULES:
        yield f"rules: expected 1 to {RULES}, found {artifact.rules}: a later version of the harness made it"
        return
    again = figures(artifact.runs, artifact.spec, artifact.metric, artifact.refusal, artifact.rules)
    yield from _differences("summaries", artifact.summaries, again.summaries)
    yield from _differences("comparisons", artifact.comparisons, again.comparisons)
    yield from _differences("noise_floor", artifact.noise_floor, again.noise_floor)


def _arms(artifact: Artifact) -> Iterator[str]:
    assert artifact.spec is not None
    wanted, found = [arm.tag for arm in artifact.spec.arms], [arm.tag for arm in artifact.arms]
    if sorted(wanted) != sorted(found):
        yield f"arms: expected those of spec, {', '.join(wanted)}; found {', '.join(found) or 'none'}"
    adapters = {arm.tag: arm.adapter for arm in artifact.spec.arms}
    for arm in artifact.arms:
        adapter = adapters.get(arm.tag)
        if adapter != arm.adapter and arm.tag in adapters:
            yield f"arms: {arm.tag}: expected adapter {adapter}, as in spec; found {arm.adapter}"
        if adapter is None or not any(run.tag == arm.tag and run.status == "ok" for run in artifact.runs):
            continue
        if arm.model is None:
            yield f"arms: {arm.tag}: expected the model that an adapter's program reports, found none"
        if arm.kernels is None and adapter in _TELL_KERNELS:
            yield f"arms: {arm.tag}: expected the kernels that ran, found none"


def _runs(artifact: Artifact) -> Iterator[str]:
    """A complete grid has every run that its spec asks for."""
    assert artifact.spec is not None
    passes = artifact.spec.passes
    if late := next((run for run in artifact.runs if run.pass_no > passes), None):
        yield f"runs: expected passes 1 to {passes}, found {late.pass_no} of arm {late.tag}"
    unavailable = {arm.tag for arm in artifact.arms if arm.unavailable is not None}
    ran = {run.tag for run in artifact.runs}
    if both := sorted(unavailable & ran):
        yield f"arms: {both[0]} is unavailable and has runs"
    if not artifact.complete:
        return
    for arm in artifact.spec.arms:
        if arm.tag not in unavailable:
            made = len({run.pass_no for run in artifact.runs if run.tag == arm.tag})
            if made != passes:
                yield f"complete: expected {passes} runs of arm {arm.tag}, found {made}"


def _differences(name: str, found: Sequence[Record], expected: Sequence[Record]) -> Iterator[str]:
    if len(found) != len(expected):
        yield f"{name}: the runs give {len(expected)} rows, found {len(found)}"
        return
    for number, (row, again) in enumerate(zip(found, expected, strict=True)):
        there, computed = row.model_dump(mode="json"), again.model_dump(mode="json")
        for key, value in computed.items():
            if not _same(there[key], value):
                yield f"{name}.{number}.{key}: the runs give {value!r:.120}, found {there[key]!r:.120}"
                return


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-12)
    return bool(a == b)
