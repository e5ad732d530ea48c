"""From figures to places along an axis, and round numbers to label it with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
# Room at both ends, so that no mark is cut off.
_MARGIN = 0.04


@dataclass(frozen=True)
class Scale:
    """``low`` to ``high``; logarithmic where ratios are shown."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        low, high, value = (math.log(x) if self.logarithmic else x for x in (self.low, self.high, value))
        return (value - low) / (high - low)

    def percent(self, value: float) -> str:
        """As an SVG coordinate, which keeps text and marks their size however wide the plot is."""
        return f"{100 * self.share(value):.2f}%"


def linear(values: Iterable[float], from_zero: bool = False, ticks: int = 6) -> Scale:
    """An axis around ``values``."""
    found = list(values)
    low, high = (0.0 if from_zero else min(found)), max(found)
    room = (high - low) * _MARGIN or abs(low) * 0.05 or 1.0
    bottom, top = (0.0 if from_zero else low - room), high + room
    return Scale(bottom, top, _ticks(bottom, top, ticks))


def ratios(values: Iterable[float], ticks: int = 6) -> Scale:
    """A logarithmic axis around positive ``values`` and one."""
    found = [1.0, *values]
    room = max(math.log(max(found) / min(found)) * _MARGIN * 2, 0.004)
    low, high = min(found) * math.exp(-room), max(found) * math.exp(room)
    marks = _ticks(low, high, ticks) if high / low < 8 else _powers(low, high)
    return Scale(low, high, tuple(mark for mark in marks if mark > 0), logarithmic=True)


def _ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(size * power for size in _STEPS if size * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Divided rather than multiplied where the step is below one: 3 / 10 is the nearest float to 0.3.
    return tuple(float(f"{index * step:.12g}") for index in range(first, last + 1))


def _powers(low: float, high: float) -> tuple[float, ...]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    inside = [mark for mark in marks if low <= mark <= high]
    return tuple(inside[:: max(1, math.ceil(len(inside) / 7))] if 1.0 not in inside else _around_one(inside))


def _around_one(marks: list[float]) -> list[float]:
    """Thinned out, with one among those that stay."""
    step = max(1, math.ceil(len(marks) / 7))
    return marks[marks.index(1.0) % step :: step]
