"""The t distribution, against closed forms, published quantiles and numeric integration."""

from __future__ import annotations

import math

import pytest

from benchmarks.edge_harness.statistics.student import cdf, two_sided


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [  # printed tables of the t distribution, two-sided
        (0.95, 1, 12.7062),
        (0.99, 2, 9.9248),
        (0.99, 6, 3.7074),
        (0.98, 6, 3.1427),
        (0.999, 6, 5.9588),
        (0.95, 30, 2.0423),
        (0.99, 120, 2.6174),
    ],
)
def test_quantiles_are_those_of_printed_tables(confidence: float, degrees: int, expected: float) -> None:
    assert two_sided(confidence, degrees) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("t", [-40.0, -3.0, -0.1, 0.0, 0.7, 2.5, 1000.0])
def test_one_and_two_degrees_have_closed_forms(t: float) -> None:
    assert cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-13)
    assert cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-13)


@pytest.mark.parametrize("degrees", [2.5, 6, 11.7, 250])
@pytest.mark.parametrize("t", [0.3, 1.9, 4.2])
def test_distribution_is_the_integral_of_its_density(degrees: float, t: float) -> None:
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    steps = 2000
    density = [scale * (1 + (t * i / steps) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(steps + 1)]
    simpson = density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2])
    assert cdf(t, degrees) == pytest.approx(0.5 + simpson * t / steps / 3, abs=1e-11)


@pytest.mark.parametrize("confidence", [0.5, 0.98, 1 - 1e-4, 1 - 1e-9])
@pytest.mark.parametrize("degrees", [1, 3.5, 6, 40])
def test_quantile_inverts_the_distribution(confidence: float, degrees: float) -> None:
    t = two_sided(confidence, degrees)
    assert 2 * cdf(-t, degrees) == pytest.approx(1 - confidence, rel=1e-9)


@pytest.mark.parametrize(("confidence", "degrees"), [(0, 6), (1, 6), (0.99, 0)])
def test_there_is_no_quantile_of_certainty(confidence: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="expected 0 < confidence < 1 and degrees > 0"):
        two_sided(confidence, degrees)
