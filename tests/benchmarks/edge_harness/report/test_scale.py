"""Axes."""

from __future__ import annotations

import pytest

from benchmarks.edge_harness.report.scale import linear, ratios


@pytest.mark.parametrize(
    "values", [[1.0, 9.0], [5.0], [0.0], [-3.0, 3.0], [1e-9, 2e-9], [1e9, 1.001e9], [100.0, 100.0001]]
)
def test_every_value_lies_inside_and_ticks_do_too(values: list[float]) -> None:
    scale = linear(values)
    assert all(0 < scale.share(value) < 1 for value in values)
    assert 1 <= len(scale.ticks) <= 8
    assert all(0 <= scale.share(tick) <= 1 for tick in scale.ticks)


def test_ticks_are_round() -> None:
    assert linear([62.0, 83.0]).ticks == (65.0, 70.0, 75.0, 80.0)
    assert linear([0.11, 0.52]).ticks == (0.1, 0.2, 0.3, 0.4, 0.5)


def test_from_zero() -> None:
    scale = linear([10.0, 20.0], from_zero=True)
    assert scale.low == 0
    assert scale.ticks[0] == 0


@pytest.mark.parametrize("values", [[1.3], [0.5, 0.9], [0.001, 1000.0], [1.0], [1.0001], [30.0], [1e-12]])
def test_ratios_always_show_one(values: list[float]) -> None:
    scale = ratios(values)
    assert 0 < scale.share(1.0) < 1
    assert all(0 < scale.share(value) < 1 for value in values)
    assert 1.0 in scale.ticks
    assert len(scale.ticks) <= 9


def test_equal_factors_are_equally_far() -> None:
    scale = ratios([0.5, 2.0])
    assert scale.share(2.0) - scale.share(1.0) == pytest.approx(scale.share(1.0) - scale.share(0.5))
    assert scale.percent(1.0) == "50.00%"
