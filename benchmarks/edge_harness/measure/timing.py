"""Arithmetic on raw times: when a warm-up is over, and what a repetition's token times say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

STABLE_WITHIN = 0.05
FEWEST_WARM_UPS = 3
MOST_WARM_UPS = 10


@dataclass(frozen=True)
class Repetition:
    """One measured prompt and what was decoded after it; times are seconds since the request.

    ``step_ends_s``: when each decode step ended, the first entry being the moment at which the last of
    ``batch`` sequences had its first token. Every step gives ``batch`` tokens.
    """

    prompt_tokens: int
    batch: int
    step_ends_s: tuple[float, ...]
    prefill_start_s: float = 0.0
    """Not 0 where tokens were put into the KV cache first (depth): they are not part of the figure."""

    @property
    def ttft_ms(self) -> float:
        return (self.step_ends_s[0] - self.prefill_start_s) * 1e3

    @property
    def pp_tps(self) -> float:
        return self.prompt_tokens * self.batch / (self.step_ends_s[0] - self.prefill_start_s)

    @property
    def tg_tps(self) -> float:
        """Tokens after the first of each sequence, over the time they took."""
        steps = len(self.step_ends_s) - 1
        return steps * self.batch / (self.step_ends_s[-1] - self.step_ends_s[0])

    @property
    def intervals_ms(self) -> list[float]:
        """Time between tokens of one sequence, step by step."""
        return [(b - a) * 1e3 for a, b in zip(self.step_ends_s, self.step_ends_s[1:], strict=False)]


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank: a value that was measured, never one between two."""
    if not values or not 0 < q <= 100:
        raise ValueError(f"expected values and 0 < q <= 100, got {len(values)} values and {q=}")
    ordered = sorted(values)
    return ordered[max(1, math.ceil(q / 100 * len(ordered))) - 1]


def is_stable(step_ms: Sequence[float], within: float = STABLE_WITHIN) -> bool:
    """Whether the last two warm-up rounds took the same time, and no shorter one came before them."""
    if len(step_ms) < FEWEST_WARM_UPS:
        return False
    last, before = step_ms[-1], step_ms[-2]
    return abs(last - before) <= within * min(last, before) and last <= min(step_ms) * (1 + within)


def speed_metrics(repetitions: Sequence[Repetition]) -> dict[str, float]:
    """Medians over the repetitions; latency percentiles over all steps of all of them."""
    intervals = [ms for r in repetitions for ms in r.intervals_ms]
    return {
        "pp_tps": statistics.median(r.pp_tps for r in repetitions),
        "ttft_ms": statistics.median(r.ttft_ms for r in repetitions),
        "tg_tps": statistics.median(r.tg_tps for r in repetitions),
        "step_ms": statistics.median(statistics.fmean(r.intervals_ms) for r in repetitions),
        "itl_ms_p50": percentile(intervals, 50),
        "itl_ms_p99": percentile(intervals, 99),
    }


def speed_samples(repetitions: Sequence[Repetition]) -> dict[str, list[float]]:
    """The raw values behind :func:`speed_metrics`."""
    return {
        "pp_tps": [r.pp_tps for r in repetitions],
        "ttft_ms": [r.ttft_ms for r in repetitions],
        "tg_tps": [r.tg_tps for r in repetitions],
        "step_ms": [statistics.fmean(r.intervals_ms) for r in repetitions],
        "itl_ms": [ms for r in repetitions for ms in r.intervals_ms],
    }
