"""Self times of operators from torch's profiler, in buckets that add up to the wall time of a step.

Rules, in this order:

1. the operator's own name says GEMM or attention (its Python wrapper and its cache update included);
2. a kernel that the compiler generated is norm+activation: all of a decoder's elementwise work is in them;
3. inside the sampler: sampling;
4. elementwise arithmetic of the model, and rows of its table: norm+activation;
5. everything else, views, slices and the compiled graph's own calls included: framework.

A self time is the time on the thread that runs the step, children taken off, so the sum is at most the wall
time. What is missing to it ran outside every operator (the scheduler, Python between operators) and is
reported as ``uncovered``; ranges that only mark a part of a step are no operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Bucket = Literal["gemm", "attention", "norm_activation", "sampling", "framework"]
BUCKETS: tuple[Bucket, ...] = ("gemm", "attention", "norm_activation", "sampling", "framework")

# Ranges that the profiler is given around parts of a step.
SAMPLING_RANGE = "omni: sampling"
MODEL_RANGE = "omni: model"
RANGES = (SAMPLING_RANGE, MODEL_RANGE)

_GEMM = re.compile(
    r"linear|gemm|matmul|onednn_mm|dnnl|mkldnn|(^|::|_)(add)?(b?mm|mv)(_|$)|scaled_mm|int[48]pack|packed_linear"
    r"|dynamic_4bit"
)
_ATTENTION = re.compile(
    r"attention|attn|flash|paged|reshape_and_cache|kv_cache|get_scheduler_metadata|mla_decode"
)
# Of vLLM and torch: Python and dispatch around the operator that computes.
_WRAPPER = re.compile(r"^vllm::unified_|get_scheduler_metadata|^aten::(linear|matmul)$")
_GENERATED = re.compile(r"^(cpp_|graph_\d+_cpp_|kernel_cpp)")
_ARITHMETIC = re.compile(
    r"^(aten|_C)::(add|sub|mul|div|neg|rsqrt|sqrt|pow|mean|sum|silu|gelu|sigmoid|tanh|exp|softmax|_softmax|rms_norm"
    r"|fused_add_rms_norm|silu_and_mul|gelu_and_mul|layer_norm|native_layer_norm|rotary_embedding|cos|sin|square)"
    r"_?(\.|$)|embedding$"
)


class Event(Protocol):
    """What is used of ``torch.autograd.profiler_util.FunctionEvent``. Times in µs."""

    name: str
    self_cpu_time_total: float
    cpu_parent: Event | None


@dataclass(frozen=True)
class OpTime:
    """One operator's share of a step, or of several."""

    name: str
    bucket: Bucket
    self_ms: float
    calls: float


def bucket_of(name: str, ancestors: Iterable[str]) -> Bucket:
    """``ancestors``: names of the ranges and operators around it."""
    # Views on a weight are named like arithmetic and compute nothing; aten::mm_out and the like are.
    if _ATTENTION.search(name):
        return "attention"
    if _GEMM.search(name):
        return "gemm"
    if _GENERATED.search(name):
        return "norm_activation"
    around = list(ancestors)
    if SAMPLING_RANGE in around:
        return "sampling"
    if _ARITHMETIC.search(name) and MODEL_RANGE in around:
        return "norm_activation"
    return "framework"


def op_times(events: Iterable[Event], steps: int) -> list[OpTime]:
    """Per operator and bucket, per step; the longest first."""
    totals: dict[tuple[str, Bucket], tuple[float, int]] = {}
    for event in events:
        if event.name in RANGES:
            continue
        key = event.name, bucket_of(event.name, _ancestors(event))
        self_us, calls = totals.get(key, (0.0, 0))
        totals[key] = self_us + event.self_cpu_time_total, calls + 1
    rows = [
        OpTime(name, bucket, self_us / 1e3 / steps, calls / steps)
        for (name, bucket), (self_us, calls) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row.self_ms)


def _ancestors(event: Event) -> Iterable[str]:
    parent = event.cpu_parent
    while parent is not None:
        yield parent.name
        parent = parent.cpu_parent


def bucket_sums(rows: Iterable[OpTime], wall_ms: float) -> dict[str, float]:
    """Milliseconds per bucket, ``uncovered`` and ``wall``; all but ``wall`` add up to it.

    Raises ``ValueError`` when the operators took longer than the step: then they were not on one thread, and
    no sum means anything.
    """
    sums: dict[str, float] = {f"{bucket}_ms": 0.0 for bucket in BUCKETS}
    for row in rows:
        sums[f"{row.bucket}_ms"] += row.self_ms
    covered = sum(sums.values())
    # The profiler's clock and ours are read at different moments; a thousandth is theirs.
    if covered > wall_ms * 1.001:
        raise ValueError(f"operators took {covered:.3f} ms of a step of {wall_ms:.3f} ms")
    return sums | {"uncovered_ms": max(0.0, wall_ms - covered), "wall_ms": wall_ms}


def kernels_of(rows: Iterable[OpTime], served_natively: Iterable[str] = ()) -> dict[str, int]:
    """GEMM and attention operators of one step and how often each ran, which is in how many layers.

    ``served_natively``: operators that another counter names by their kernels. Operators that only lead to
    another one of the list are left out.
    """
    left_out = set(served_natively)
    found: dict[str, int] = {}
    for row in rows:
        is_kernel = row.bucket in ("gemm", "attention") and not _WRAPPER.search(row.name)
        if is_kernel and row.name not in left_out and row.calls >= 1:
            found[row.name] = round(row.calls)
    return found
