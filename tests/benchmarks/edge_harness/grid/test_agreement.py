"""Declared against ran, and verification values that are none."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.edge_harness.artifact.schema import Verification
from benchmarks.edge_harness.grid.agreement import read_verification, undeclared, why_invalid
from benchmarks.edge_harness.spec import Arm, Spec


@pytest.mark.parametrize(
    ("declares", "ran", "expected"),
    [
        ({}, None, None),
        ({"weight_bits": 4}, {"weight_bits": 4.0, "more": 1}, None),
        ({"act": "int8"}, {"act": "int8"}, None),
        (
            {"weight_bits": 4, "head_bits": 8},
            {"weight_bits": 4, "head_bits": 16},
            "declares head_bits 8; ran: head_bits 16",
        ),
        ({"head_bits": 8}, {}, "declares head_bits 8; ran: head_bits is not reported"),
        ({"head_bits": 8}, {"head_bits": "8"}, "declares head_bits 8; ran: head_bits 8"),
        ({"mapped": True}, {"mapped": 1}, "declares mapped True; ran: mapped 1"),
        ({"head_bits": 8}, None, "declares head_bits 8, and the program does not report what ran"),
        ({"head_bits": 8}, [8], "declares head_bits 8, and the program does not report what ran"),
    ],
)
def test_what_ran_must_be_what_was_declared(declares: dict[str, Any], ran: Any, expected: str | None) -> None:
    assert undeclared(declares, ran) == expected


def test_a_verification_value_is_read() -> None:
    value = {"kind": "token_ids", "value": [1, 2], "of": "greedy"}
    assert read_verification({"verification": value}) == Verification.model_validate(value)
    assert read_verification({}) is None


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "token_ids", "value": "1 2", "of": "x"},
        {"kind": "logprob", "value": "NaN", "of": "x"},
        {"kind": "checksum", "value": 3, "of": "x"},
        {"kind": "vibes", "value": 3, "of": "x"},
        {"kind": "checksum", "value": "a"},
        {"kind": "checksum", "value": "a", "of": "x", "extra": 1},
        [1, 2],
        "abc",
    ],
)
def test_what_is_no_verification_value_makes_the_run_invalid(value: Any) -> None:
    reason = read_verification({"verification": value})
    assert isinstance(reason, str)
    assert reason.startswith("verification.")
    assert why_invalid(*arm_and_spec("if_reported"), {"verification": value}) == reason
    assert why_invalid(*arm_and_spec("ignored"), {"verification": value}) is None


def arm_and_spec(verification: str) -> tuple[Arm, Spec]:
    arm = Arm(tag="a", command=["x"])
    return arm, Spec.model_validate({"arms": [arm.model_dump()], "verification": verification})


def test_a_required_value_must_be_there() -> None:
    assert why_invalid(*arm_and_spec("required"), {}) == "no verification value, and the spec requires one"
    assert why_invalid(*arm_and_spec("if_reported"), {}) is None
