"""What a profile's windows become."""

from __future__ import annotations

import pytest

from benchmarks.edge_harness.cli.profile import lines
from benchmarks.edge_harness.measure.op_times import OpTime
from benchmarks.edge_harness.measure.profile import _Window, longest, profile_record


def window(plain_ms: float, profiled_ms: float, gemm_ms: float, extra: list[OpTime] | None = None) -> _Window:
    rows = [OpTime("linear", "gemm", gemm_ms, 121), OpTime("attn", "attention", 1.0, 30), *(extra or [])]
    return _Window(plain_ms, profiled_ms, rows)


WINDOWS = [window(10, 12, 6), window(11, 13, 7), window(12, 14, 8, [OpTime("rare", "framework", 0.5, 1)])]


def test_medians_and_spread_over_the_windows() -> None:
    record = profile_record(WINDOWS)
    assert record["step_ms"] == 11
    assert record["gemm_ms"] == 7
    assert record["sd_ms"]["gemm_ms"] == pytest.approx(1)
    assert record["profiling_cost"] == pytest.approx(13 / 11 - 1)
    assert record["uncovered_ms"] == 5
    assert record["covered_share"] == pytest.approx(8 / 13)
    assert "5.00 ms of 13.00 ms" in record["notes"][0]
    for index in range(3):
        samples = record["samples"]
        parts = sum(values[index] for name, values in samples.items() if name not in ("wall_ms", "step_ms"))
        assert parts == pytest.approx(samples["wall_ms"][index])


def test_one_window_has_no_spread() -> None:
    assert profile_record(WINDOWS[:1])["sd_ms"]["gemm_ms"] is None


def test_an_operator_that_windows_lack_took_no_time_in_them() -> None:
    rare = next(row for row in longest(WINDOWS) if row["name"] == "rare")
    assert rare["self_ms"] == 0
    assert [row["name"] for row in longest(WINDOWS, 2)] == ["linear", "attn"]


def test_every_bucket_and_the_rest_are_printed() -> None:
    shown = "\n".join(lines(profile_record(WINDOWS), top=1))
    for name in ("gemm", "attention", "norm_activation", "sampling", "framework", "uncovered"):
        assert name in shown
    assert "linear" in shown
    assert "attn" not in shown.replace("attention", "")
