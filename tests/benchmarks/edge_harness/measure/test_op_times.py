"""Buckets of a profile."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.edge_harness.measure.op_times import (
    MODEL_RANGE,
    SAMPLING_RANGE,
    OpTime,
    bucket_of,
    bucket_sums,
    kernels_of,
    op_times,
)


@dataclass
class FakeEvent:
    name: str
    self_cpu_time_total: float
    cpu_parent: FakeEvent | None = None


@pytest.mark.parametrize(
    ("name", "around", "bucket"),
    [
        ("vllm::cpu_int4_linear", (), "gemm"),
        ("_C::onednn_mm", (MODEL_RANGE,), "gemm"),
        ("aten::addmm", (), "gemm"),
        ("aten::mm", (SAMPLING_RANGE,), "gemm"),
        ("vllm::unified_attention_with_output", (MODEL_RANGE,), "attention"),
        ("_C_cache_ops::cpu_attn_reshape_and_cache", (), "attention"),
        ("vllm::unified_kv_cache_update", (), "attention"),
        ("cpp_fused_add_mean_mul_pow_rsqrt_3", ("## Call CompiledFxGraph ##",), "norm_activation"),
        ("vllm::cpu_int4_embedding", (MODEL_RANGE,), "norm_activation"),
        ("aten::mul", (MODEL_RANGE,), "norm_activation"),
        ("aten::mul", (), "framework"),
        ("aten::argmax", ("aten::max", SAMPLING_RANGE), "sampling"),
        ("aten::copy_", (SAMPLING_RANGE,), "sampling"),
        ("aten::as_strided", (MODEL_RANGE,), "framework"),
        ("## Call CompiledFxGraph ##", (MODEL_RANGE,), "framework"),
        # "mm" and "linear" inside of other words are no GEMM.
        ("aten::comm_split", (), "framework"),
        ("aten::add", (MODEL_RANGE,), "norm_activation"),
    ],
)
def test_the_bucket_of_an_operator(name: str, around: tuple[str, ...], bucket: str) -> None:
    assert bucket_of(name, around) == bucket


def test_self_times_are_summed_per_step_with_the_ranges_left_out() -> None:
    model = FakeEvent(MODEL_RANGE, 700)
    sampling = FakeEvent(SAMPLING_RANGE, 50)
    events = [
        model,
        FakeEvent("vllm::cpu_int4_linear", 3000, model),
        FakeEvent("vllm::cpu_int4_linear", 1000, model),
        FakeEvent("aten::to", 100, model),
        sampling,
        FakeEvent("aten::to", 200, sampling),
    ]
    rows = op_times(events, steps=2)
    assert [(row.name, row.bucket, row.self_ms, row.calls) for row in rows] == [
        ("vllm::cpu_int4_linear", "gemm", 2.0, 1.0),
        ("aten::to", "sampling", 0.1, 0.5),
        ("aten::to", "framework", 0.05, 0.5),
    ]


def test_buckets_and_the_uncovered_rest_add_up_to_the_wall() -> None:
    rows = [OpTime("a", "gemm", 2.0, 1), OpTime("b", "framework", 0.5, 1), OpTime("c", "gemm", 0.25, 1)]
    sums = bucket_sums(rows, 4.0)
    assert sums["gemm_ms"] == 2.25
    assert sums["uncovered_ms"] == pytest.approx(1.25)
    assert sum(value for name, value in sums.items() if name != "wall_ms") == pytest.approx(4.0)


def test_operators_that_took_longer_than_the_step_are_refused() -> None:
    with pytest.raises(ValueError, match=r"4\.500 ms of a step of 4\.000"):
        bucket_sums([OpTime("a", "gemm", 4.5, 1)], 4.0)


def test_kernels_are_gemm_and_attention_operators() -> None:
    rows = [
        OpTime("_C::onednn_mm", "gemm", 1.0, 121),
        OpTime("vllm::cpu_int4_linear", "gemm", 1.0, 121),
        OpTime("attention", "attention", 1.0, 30),
        OpTime("vllm::unified_kv_cache_update", "attention", 1.0, 30),
        OpTime("aten::add", "norm_activation", 1.0, 5),
    ]
    assert kernels_of(rows, ["vllm::cpu_int4_linear"]) == {"_C::onednn_mm": 121, "attention": 30}
