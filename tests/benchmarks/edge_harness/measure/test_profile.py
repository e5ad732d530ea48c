"""What a profile's windows become."""

from __future__ import annotations

import pytest
import torch

from benchmarks.edge_harness.cli.profile import lines
from benchmarks.edge_harness.measure.op_times import OpTime, op_times
from benchmarks.edge_harness.measure.profile import (
    SETTLING_STEPS,
    _Window,
    longest,
    profile_record,
    recorded,
)
from vllm_omni.errors import OmniError


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


def test_a_profile_that_saw_little_or_ran_faster_says_so() -> None:
    assert any(
        "operators cover 62% of a step, expected 80%" in note for note in profile_record(WINDOWS)["notes"]
    )
    whole = [window(20, 10, 9)]
    notes = profile_record(whole)["notes"]
    assert len(notes) == 2
    assert notes[1].startswith("profiled steps were 50% faster than plain ones")


def test_a_profile_without_operators_or_with_too_many_is_one_line() -> None:
    with pytest.raises(OmniError, match="expected operators in the profiled steps, found none"):
        profile_record([_Window(10, 10, [])])
    with pytest.raises(OmniError, match=r"operators took 21\.000 ms of a step of 10\.000 ms"):
        profile_record([window(10, 10, 20)])


@pytest.mark.parametrize("profiled_first", [True, False])
def test_plain_and_profiled_steps_take_turns(profiled_first: bool) -> None:
    seen: list[bool] = []

    def step() -> None:
        seen.append(torch.autograd._profiler_enabled())
        torch.zeros(1).add_(1)

    recording = recorded(step, 3, profiled_first=profiled_first)
    counted = seen[SETTLING_STEPS : SETTLING_STEPS + 3], seen[-3:]
    assert counted == ([profiled_first] * 3, [not profiled_first] * 3)
    assert len(seen) == 2 * (SETTLING_STEPS + 3)
    assert recording.plain_ms >= 0
    calls = {row.name: row.calls for row in op_times(recording.events(), 3)}
    assert calls["aten::add_"] == 1


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
