"""Arithmetic on token times."""

from __future__ import annotations

import pytest

from benchmarks.edge_harness.measure.timing import (
    Repetition,
    is_stable,
    percentile,
    speed_metrics,
    speed_samples,
)

# A prompt of 100 tokens in half a second, then steps of 10, 20 and 30 ms.
ONE = Repetition(100, 1, (0.5, 0.51, 0.53, 0.56))


def test_a_repetitions_figures() -> None:
    assert ONE.pp_tps == pytest.approx(200)
    assert ONE.ttft_ms == pytest.approx(500)
    assert ONE.tg_tps == pytest.approx(3 / 0.06)
    assert ONE.intervals_ms == pytest.approx([10, 20, 30])


def test_every_sequence_of_a_batch_counts() -> None:
    four = Repetition(100, 4, (0.5, 0.6, 0.7))
    assert four.pp_tps == pytest.approx(800)
    assert four.tg_tps == pytest.approx(8 / 0.2)


def test_tokens_that_only_fill_the_cache_are_not_timed() -> None:
    assert Repetition(100, 1, (0.7, 0.8), prefill_start_s=0.2).pp_tps == pytest.approx(200)


def test_metrics_are_medians_of_repetitions_and_percentiles_of_steps() -> None:
    slow = Repetition(100, 1, (1.0, 1.02, 1.04, 1.06))
    fast = Repetition(100, 1, (0.25, 0.26, 0.27, 0.28))
    metrics = speed_metrics([slow, ONE, fast])
    assert metrics["pp_tps"] == pytest.approx(200)
    assert metrics["tg_tps"] == pytest.approx(50)
    assert metrics["step_ms"] == pytest.approx(20)
    assert metrics["itl_ms_p50"] == pytest.approx(20)
    assert metrics["itl_ms_p99"] == pytest.approx(30)
    assert len(speed_samples([slow, ONE, fast])["itl_ms"]) == 9


def test_a_percentile_is_a_measured_value() -> None:
    values = [float(v) for v in range(1, 101)]
    assert percentile(values, 99) == 99
    assert percentile(values, 50) == 50
    assert percentile([3.0], 1) == 3
    with pytest.raises(ValueError, match="expected values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="q=0"):
        percentile([1.0], 0)


@pytest.mark.parametrize(
    ("step_ms", "stable"),
    [
        ([10, 10], False),
        ([30, 10, 10.2], True),
        ([30, 10, 12], False),
        # Still falling.
        ([30, 20, 15, 12], False),
        # Two that agree, but slower than it can be.
        ([10, 14, 14.1], False),
    ],
)
def test_a_warm_up_ends_when_the_step_time_holds_still(step_ms: list[float], stable: bool) -> None:
    assert is_stable(step_ms) is stable
