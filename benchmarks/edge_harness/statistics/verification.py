"""Whether two arms computed the same, by the verification values of their runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from benchmarks.edge_harness.artifact.schema import Run, Verification

Mode = Literal["required", "if_reported", "ignored"]


def disagreement(runs: Sequence[Run], a: str, b: str, mode: Mode, tolerance_nats: float) -> str | None:
    """Why the figures of ``a`` and ``b`` must not be ranked, or ``None``. Where one successful run reports a
    value, all of both arms must: an arm cannot pass by being silent."""
    if mode == "ignored":
        return None
    successful = [run for run in runs if run.tag in (a, b) and run.status == "ok"]
    values = [run.verification for run in successful if run.verification is not None]
    if not values and mode == "if_reported":
        return None
    for tag in (a, b):
        silent = sum(run.tag == tag and run.verification is None for run in successful)
        if silent:
            return f"{silent} {'run' if silent == 1 else 'runs'} of {tag} without a verification value"
    if len({value.kind for value in values}) > 1:
        return "their verification values are of different kinds"
    if len({value.of for value in values}) > 1:
        return "their verification values are of different computations"
    if values and values[0].kind == "logprob":
        return _logprobs_apart(values, tolerance_nats)
    if len({repr(value.value) for value in values}) > 1:
        return _who_differs(successful, a, b)
    return None


def _logprobs_apart(values: Sequence[Verification], tolerance_nats: float) -> str | None:
    numbers = [value.value for value in values]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return "a verification value is not a finite log-probability"
    finite = [float(number) for number in numbers if isinstance(number, int | float)]
    apart = max(finite) - min(finite)
    if apart > tolerance_nats:
        return f"their verification values disagree: {apart:.3g} nats apart, allowed {tolerance_nats:g}"
    return None


def _who_differs(runs: Sequence[Run], a: str, b: str) -> str:
    for tag in (a, b):
        own = {repr(run.verification.value) for run in runs if run.tag == tag and run.verification}
        if len(own) > 1:
            return f"the verification values of {tag} differ between its own runs"
    return "their verification values disagree"
