"""``--check``: medians against expected ones, within a band for each metric."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.edge_harness.artifact.schema import Check, MetricSummary
from benchmarks.edge_harness.metrics import Metric, metric
from benchmarks.edge_harness.statistics.paired import FEWEST_PAIRS
from vllm_omni.errors import OmniError

# A median of fewer is one run's word.
FEWEST_RUNS = FEWEST_PAIRS

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Band = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Status = Literal["ok", "regression", "improved", "unlisted", "not_gated", "missing"]


class Expectations(BaseModel):
    """``{"arms": {tag: {metric: median}}, "bands_pct": {metric: percent}}``"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: Annotated[dict[str, dict[str, _Finite]], Field(min_length=1)]
    bands_pct: dict[str, _Band] = {}


def read_expectations(path: Path) -> Expectations:
    """Raises :class:`OmniError` naming what is wrong."""
    try:
        return Expectations.model_validate(json.loads(path.read_text()))
    except OSError as error:
        raise OmniError(f"{path}: expected a readable expectations file: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise OmniError(f"{path}: expected JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise OmniError(f"{path}: {where}: {first['msg']}") from error


def require_bands(expectations: Expectations, declared: Mapping[str, Metric], where: Path) -> None:
    """Before a grid starts: every expected metric can be gated. Raises :class:`OmniError` naming the first of
    the file ``where`` that has no band."""
    for tag, metrics in expectations.arms.items():
        for name in metrics:
            if _band(expectations, metric(name, dict(declared))) is None:
                raise OmniError(f"{where}: arms.{tag}.{name}: expected a band in bands_pct")


def check(
    expectations: Expectations, summaries: Sequence[MetricSummary], declared: Mapping[str, Metric]
) -> list[Check]:
    """First everything expected, in the file's order, then what was measured beyond it."""
    measured = {(row.tag, row.metric): row for row in summaries}
    checks = []
    for tag, metrics in expectations.arms.items():
        for name, expected in metrics.items():
            what = metric(name, dict(declared))
            band = _band(expectations, what)
            row = measured.pop((tag, name), None)
            if row is None:
                checks.append(_check(tag, name, "missing", None, expected, band, "expected, not measured"))
            else:
                checks.append(_gate(what, row, expected, band))
    for (tag, name), row in measured.items():
        checks.append(_check(tag, name, "unlisted", row.median, None, None, "measured, no expected value"))
    return checks


def fails(checks: Sequence[Check]) -> bool:
    """Whether the gate stays shut: a regression, or something expected that did not come or was not held
    against anything."""
    return any(row.status in ("regression", "missing", "not_gated") for row in checks)


def _band(expectations: Expectations, what: Metric) -> float | None:
    return expectations.bands_pct.get(what.name, what.band_pct)


def _gate(what: Metric, row: MetricSummary, expected: float, band: float | None) -> Check:
    def result(status: _Status, why: str) -> Check:
        return _check(row.tag, row.metric, status, row.median, expected, band, why)

    if band is None:
        return result("not_gated", f"no band for {what.name}, neither its own nor in bands_pct")
    if row.n < FEWEST_RUNS:
        runs = "run counts" if row.n == 1 else "runs count"
        return result("missing", f"{row.n} {runs}, expected {FEWEST_RUNS} or more")
    # Without a direction nothing is an improvement.
    change = row.median - expected
    worse = change != 0 if what.direction == "neutral" else (change < 0) == (what.direction == "higher")
    size = f"median of {row.n}"
    if abs(change) <= abs(expected) * band / 100:
        return result("ok", f"{size} within the band")
    if worse:
        return result("regression", f"{size} worse by more than the band")
    return result("improved", f"{size} better by more than the band; expect it from now on")


def _check(
    tag: str,
    name: str,
    status: _Status,
    measured: float | None,
    expected: float | None,
    band: float | None,
    why: str,
) -> Check:
    drift = 100 * (measured - expected) / abs(expected) if measured is not None and expected else None
    return Check(
        tag=tag,
        metric=name,
        status=status,
        measured=measured,
        expected=expected,
        drift_pct=drift,
        band_pct=band,
        why=why,
    )
