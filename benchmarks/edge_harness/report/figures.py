"""Numbers as they are read: four significant digits, and never an exponent where digits do."""

from __future__ import annotations

import math

MISSING = "–"


def figure(value: float | int | None) -> str:
    """``1234567`` as ``1,234,567``, ``12.3456`` as ``12.35``, ``0.000123`` as ``0.0001230``."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-6 or abs(value) >= 1e15:
        return f"{value:.3e}"
    # Rounded first, so that 999.96 counts as four digits before the point.
    magnitude = math.floor(math.log10(abs(float(f"{value:.3e}"))))
    decimals = max(0, 3 - magnitude)
    if isinstance(value, int) or float(value).is_integer():
        decimals = 0
    return f"{value:,.{decimals}f}"


def confidence(level: float) -> str:
    """As percent, with two digits of what is missing to certainty: ``98 %``, ``99.964 %``."""
    missing = 100 * (1 - level)
    if not 0 < missing < 100:
        return f"{100 * level:g} %"
    decimals = max(0, 1 - math.floor(math.log10(missing) + 1e-9))
    return f"{round(100 * level, decimals):.12g} %"


def sentence(text: str) -> str:
    """With a full stop where it lacks one, so that another sentence may follow."""
    return text if text.rstrip()[-1:] in (".", "!", "?") else f"{text.rstrip()}."


def percent(share: float) -> str:
    """A share of one as percent."""
    return f"{100 * share:.1f} %"
