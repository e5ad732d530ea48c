"""Arms that did not compute the same are found."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.schema import Run, Verification
from benchmarks.edge_harness.statistics.verification import disagreement
from tests.benchmarks.edge_harness import artifact_builder as build


def runs(kind: str, of_a: list[Any], of_b: list[Any], other: str = "x") -> list[Run]:
    found = build.pairs_of("tg_tps", [1.0] * len(of_a), [1.0] * len(of_b))
    for run, value in zip(found, [v for pair in zip(of_a, of_b, strict=True) for v in pair], strict=True):
        if value is not None:
            of = other if run.tag == "B" else "x"
            run.verification = Verification.model_construct(kind=kind, value=value, of=of)
    return found


def found(*args: Any, mode: Any = "if_reported", **options: Any) -> str | None:
    return disagreement(runs(*args, **options), "A", "B", mode, 0.05)


def test_what_agrees() -> None:
    assert found("logprob", [-2.30, -2.31], [-2.32, -2.30]) is None
    assert found("token_ids", [[1, 2], [1, 2]], [[1, 2], [1, 2]]) is None
    assert found("checksum", ["abc"], ["abc"]) is None
    assert found("checksum", [None], [None]) is None
    assert found("checksum", ["abc"], ["abd"], mode="ignored") is None


@pytest.mark.parametrize(
    ("kind", "of_a", "of_b", "why"),
    [
        ("logprob", [-2.30, -2.30], [-2.30, -2.36], "disagree: 0.06 nats apart, allowed 0.05"),
        ("logprob", [-2.30], [math.nan], "not a finite log-probability"),
        ("token_ids", [[1, 2]], [[1, 3]], "their verification values disagree"),
        ("token_ids", [[1, 2], [1, 3]], [[1, 2], [1, 2]], "of A differ between its own runs"),
        ("checksum", ["abc"], ["abd"], "their verification values disagree"),
        ("checksum", ["abc"], [None], "1 run of B without a verification value"),
        ("checksum", [None, None], ["abc", None], "2 runs of A without a verification value"),
    ],
)
def test_what_disagrees(kind: str, of_a: list[Any], of_b: list[Any], why: str) -> None:
    assert why in str(found(kind, of_a, of_b))


def test_values_of_different_computations_are_never_compared() -> None:
    assert "different computations" in str(found("checksum", ["abc"], ["abc"], other="y"))
    mixed = runs("checksum", ["abc"], ["abc"])
    mixed[0].verification = Verification(kind="logprob", value=-1.0, of="x")
    assert "different kinds" in str(disagreement(mixed, "A", "B", "if_reported", 0.05))


def test_silence_is_refused_where_a_value_is_required() -> None:
    assert found("checksum", [None], [None], mode="required") == "1 run of A without a verification value"
    assert disagreement([build.failed("A", 1), build.failed("B", 1)], "A", "B", "required", 0.05) is None
