"""Student's t distribution, exact to about 12 digits, so that no interval rests on a table or on scipy."""

from __future__ import annotations

import math
from functools import cache

_CONVERGED = 1e-15
_MOST_TERMS = 10_000


def cdf(t: float, degrees: float) -> float:
    """P(T <= t) with ``degrees`` > 0 degrees of freedom, fractional ones included."""
    tail = 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))
    return tail if t < 0 else 1 - tail


@cache
def two_sided(confidence: float, degrees: float) -> float:
    """The t that ``|T|`` stays below with probability ``confidence``."""
    if not 0 < confidence < 1 or not degrees > 0:
        raise ValueError(f"expected 0 < confidence < 1 and degrees > 0, found {confidence}, {degrees}")
    outside = 1 - confidence
    # The tail itself is compared, not 1 - tail, which would lose its digits in a family of many comparisons.
    low, high = 0.0, 1.0
    while _outside(high, degrees) > outside:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _outside(middle, degrees) > outside else (low, middle)
    return (low + high) / 2


def _outside(t: float, degrees: float) -> float:
    """P(|T| > t)."""
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # The continued fraction converges quickly only on this side of the mean; the other is its mirror image.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1) < _CONVERGED:
            return value
    raise ArithmeticError(f"incomplete beta of {a}, {b}, {x} did not converge")
