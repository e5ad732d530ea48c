from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.edge_harness.fidelity import bootstrap
from benchmarks.edge_harness.fidelity.bootstrap import block_sums, interval, mean_of
from vllm_omni.errors import OmniError


def correlated(trials: int, correlation: float, seed: int) -> torch.Tensor:
    """`[trials, windows, positions]` of mean 1: squares of an autoregressive series, skewed as KL is."""
    noise = torch.randn(trials, 4, 640, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    series = noise.clone()
    for step in range(1, 640):
        series[..., step] = (
            correlation * series[..., step - 1] + (1 - correlation**2) ** 0.5 * noise[..., step]
        )
    return series.square()


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.92), (0.5, 0.91), (0.9, 0.87)])
def test_intervals_cover_the_true_mean(correlation: float, least: float) -> None:
    """Of nominal 95 %: forty blocks, and correlation that does not end with a block, cost a few points."""
    scored = torch.ones(4, 640, dtype=torch.bool)
    held, above = 0, 0
    trials = correlated(300, correlation, seed=11)
    for number, trial in enumerate(trials):
        found = interval(block_sums([trial], scored), mean_of(0), seed=number, resamples=600)
        held += found.low <= 1.0 <= found.high
        above += found.low > 1.0
    assert held / len(trials) >= least
    assert above / len(trials) <= 0.06


def test_single_tokens_instead_of_blocks_would_be_too_narrow() -> None:
    """Why blocks: resampling tokens of a correlated text claims far too much."""
    scored = torch.ones(4, 640, dtype=torch.bool)
    trials = correlated(100, 0.9, seed=3)
    held = 0
    for number, trial in enumerate(trials):
        found = interval(block_sums([trial], scored, 1), mean_of(0), seed=number, resamples=200)
        held += found.low <= 1.0 <= found.high
    assert held / len(trials) < 0.7


def test_the_same_seed_gives_the_same_interval() -> None:
    blocks = block_sums([correlated(1, 0.5, 1)[0]], torch.ones(4, 640, dtype=torch.bool))
    first = interval(blocks, mean_of(0), seed=5)
    assert first == interval(blocks, mean_of(0), seed=5)
    assert first != interval(blocks, mean_of(0), seed=6)
    assert first.low < first.value < first.high


def test_more_text_narrows_the_interval() -> None:
    widths = []
    for windows in (1, 4, 16):
        values = correlated(windows, 0.5, 2)[:, 0]
        found = interval(block_sums([values], torch.ones(values.shape, dtype=torch.bool)), mean_of(0), seed=0)
        widths.append(found.high - found.low)
    assert widths[0] > 1.5 * widths[1] > 2 * widths[2]


def test_a_constant_has_an_interval_of_no_width() -> None:
    blocks = block_sums([torch.full((2, 640), 0.25)], torch.ones(2, 640, dtype=torch.bool))
    assert interval(blocks, mean_of(0), seed=0) == bootstrap.Interval(0.25, 0.25, 0.25)


def test_blocks_stay_inside_windows_and_scored_positions() -> None:
    values = torch.arange(2 * 300, dtype=torch.float64).reshape(2, 300)
    scored = torch.ones(2, 300, dtype=torch.bool)
    scored[1, :40] = False
    blocks = block_sums([values, values * 2], scored, 64)
    assert blocks[:, -1].tolist() == [64, 64, 64, 64, 44, 64, 64, 64, 64, 4]
    assert blocks[0].tolist() == [sum(range(64)), 2 * sum(range(64)), 64]
    assert blocks[5, 0] == sum(range(340, 404))
    np.testing.assert_allclose(blocks[:, 0].sum(), values[scored].sum())


def test_too_little_text_is_refused() -> None:
    with pytest.raises(OmniError, match="expected at least 8 blocks of 64 tokens, found 4"):
        block_sums([torch.zeros(1, 256)], torch.ones(1, 256, dtype=torch.bool))
