"""Numbers as they are read."""

from __future__ import annotations

import pytest

from benchmarks.edge_harness.report.figures import confidence, figure, percent, sentence


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (12.3456, "12.35"),
        (-12.3456, "-12.35"),
        (999.96, "1,000"),
        (99.996, "100.0"),
        (1234567, "1,234,567"),
        (1234567.8, "1,234,568"),
        (0.000123, "0.0001230"),
        (1e-9, "1.000e-09"),
        (2e20, "2.000e+20"),
        (float("inf"), "inf"),
        (7, "7"),
        (7.0, "7"),
    ],
)
def test_four_digits(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_percent() -> None:
    assert percent(0.1234) == "12.3 %"


@pytest.mark.parametrize(
    ("level", "text"),
    [(0.98, "98 %"), (0.995, "99.5 %"), (0.99964286, "99.964 %"), (0.9999999, "99.99999 %"), (0.5, "50 %")],
)
def test_a_confidence_is_never_rounded_to_certainty(level: float, text: str) -> None:
    assert confidence(level) == text


def test_a_sentence_ends() -> None:
    assert [sentence(text) for text in ("wrong head", "wrong head. ", "why?")] == [
        "wrong head.",
        "wrong head. ",
        "why?",
    ]
