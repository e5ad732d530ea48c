"""Confidence intervals by resampling blocks of neighbouring tokens.

Tokens of a text are correlated, so whole blocks of BLOCK_TOKENS positions are drawn with replacement, from
all windows; a statistic is computed from the sums over the drawn blocks. Intervals are bias-corrected and
accelerated (BCa): the mean of a skewed quantity such as a divergence lies outside of a percentile interval
too often.
The tests state the coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.edge_harness.fidelity.kl import BLOCK_TOKENS
from vllm_omni.errors import OmniError

CONFIDENCE = 0.95
RESAMPLES = 4000
LEAST_BLOCKS = 8

Sums = npt.NDArray[np.float64]
Statistic = Callable[[Sums], Sums]
"""Sums ``[…, columns]`` to values ``[…]``."""


@dataclass(frozen=True)
class Interval:
    """A statistic of all blocks and its interval of ``CONFIDENCE``."""

    value: float
    low: float
    high: float


def block_sums(columns: list[torch.Tensor], scored: torch.Tensor, block_tokens: int = BLOCK_TOKENS) -> Sums:
    """Sums of each of ``columns`` ``[windows, positions]`` over every block of scored positions, and their
    number as the last column: ``[blocks, columns + 1]``. Blocks never span windows.

    Raises ``OmniError`` for fewer than ``LEAST_BLOCKS``.
    """
    rows = []
    for window, mask in enumerate(scored):
        values = torch.stack([column[window][mask].double() for column in columns], dim=-1)
        for block in values.split(block_tokens):
            if len(block):
                rows.append([*block.sum(0).tolist(), float(len(block))])
    if len(rows) < LEAST_BLOCKS:
        raise OmniError(
            f"expected at least {LEAST_BLOCKS} blocks of {block_tokens} tokens, found {len(rows)}: "
            "score more windows"
        )
    return np.array(rows)


def mean_of(column: int) -> Statistic:
    """Mean over tokens of a column."""
    return lambda sums: sums[..., column] / sums[..., -1]


def interval(blocks: Sums, statistic: Statistic, *, seed: int, resamples: int = RESAMPLES) -> Interval:
    """``statistic`` over all ``blocks`` and its interval; the same seed gives the same one."""
    count = len(blocks)
    value = float(statistic(blocks.sum(0)))
    drawn = np.random.default_rng(seed).integers(0, count, (resamples, count))
    # How often each block was drawn, so that no resample is ever gathered.
    weights = np.stack([np.bincount(row, minlength=count) for row in drawn]).astype(np.float64)
    found = np.sort(statistic(weights @ blocks))
    left_out = statistic(blocks.sum(0) - blocks)
    low, high = _adjusted(found, value, left_out)
    return Interval(value, float(np.quantile(found, low)), float(np.quantile(found, high)))


def _adjusted(found: Sums, value: float, left_out: Sums) -> tuple[float, float]:
    """Quantiles of the BCa interval: shifted by the bias of the median, stretched by the skewness."""
    normal = NormalDist()
    tail = (1 - CONFIDENCE) / 2
    # Half of the ties count, and no share of 0 or 1 is taken at its word.
    below = (np.sum(found < value) + 0.5 * np.sum(found == value) + 0.5) / (len(found) + 1)
    bias = normal.inv_cdf(float(np.clip(below, 0.5 / len(found), 1 - 0.5 / len(found))))
    centered = left_out.mean() - left_out
    spread = float((centered**2).sum())
    acceleration = float((centered**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0

    def quantile(probability: float) -> float:
        z = bias + normal.inv_cdf(probability)
        return normal.cdf(bias + z / (1 - acceleration * z))

    return quantile(tail), quantile(1 - tail)
