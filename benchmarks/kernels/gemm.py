"""M tokens through one layer, beside what stock vLLM runs for it: oneDNN in bf16 and its int4 kernel.

All arms compute the same weights. A sample is one or more calls of one arm; the arms of a round follow each
other in an order that rotates, so a ratio is taken between neighbours in time. Weights rotate over a buffer
that is several times as large as the last-level cache, as the layers of a model do.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
from benchmarks.edge_harness.provenance.collect import collect_load
from benchmarks.edge_harness.provenance.probe import probe_artifact
from benchmarks.edge_harness.statistics.paired import paired_interval
from benchmarks.kernels.options import integers, names, positive, shapes_of
from benchmarks.kernels.rotation import buffer_bytes
from vllm_omni import _rust, int4, ops
from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import OmniError
from vllm_omni.formats import round_to_nearest
from vllm_omni.formats.affine import AffineCodes

OURS = {"native": "native", "int8": "int8"}
STOCK_BF16, STOCK_INT4 = "stock-bf16", "stock-int4"
# Relative L2 error against float64: outputs rounded to bf16; int8 activations of a normal distribution.
TOLERANCE = {"native": 5e-3, "int8": 2e-2, STOCK_BF16: 5e-3, STOCK_INT4: 2e-2}
CONFIDENCE = 0.98
SAMPLE_NS = 10_000_000
CHECKED_ROWS = 8

# One call of an arm on the weight of that index.
Call = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """``[N, K]``, symmetric 4-bit codes."""

    n: int
    k: int
    group_size: int


@dataclass(frozen=True)
class Arm:
    """What computes the layer: ``weights`` copies of it, at addresses of their own."""

    name: str
    kernel: str
    call: Call
    weights: int


@dataclass(frozen=True)
class Measurement:
    """One arm at one M. ``sample_ns`` is of ``calls`` calls."""

    arm: str
    kernel: str
    m: int
    threads: int
    calls: int
    relative_error: float
    sample_ns: list[int]

    @property
    def call_ns(self) -> float:
        return statistics.median(self.sample_ns) / self.calls

    def gflops(self, layer: Layer) -> float:
        """Billions of operations a second, a multiplication and an addition being two."""
        return 2 * self.m * layer.n * layer.k / self.call_ns

    def times_faster(self, other: Measurement) -> tuple[float, float, float]:
        """Speed of this arm in speeds of ``other``: the mean of the paired log-ratios and its interval."""
        pairs = zip(self.sample_ns, other.sample_ns, strict=True)
        logs = [math.log((theirs / other.calls) / (ours / self.calls)) for ours, theirs in pairs]
        found = paired_interval(logs, CONFIDENCE)
        return found.ratio, found.low, found.high


def check_layer(layer: Layer) -> None:
    """Raises :class:`OmniError` for a layer that not every arm takes."""
    if layer.n % 32 or layer.k % 32:
        raise OmniError(
            f"--shapes {layer.n}x{layer.k}: expected multiples of 32, which stock vLLM's kernel takes"
        )
    if layer.group_size < 8 or layer.group_size % 8 or layer.k % layer.group_size:
        raise OmniError(f"--groups {layer.group_size}: expected a multiple of 8 that divides K = {layer.k}")


def made_layer(layer: Layer) -> AffineCodes:
    """Random weights whose scales are bfloat16 numbers, so that every arm computes with the same ones."""
    dense = torch.randn(layer.n, layer.k, generator=torch.Generator().manual_seed(1)) / math.sqrt(layer.k)
    return round_to_nearest.quantize(
        dense, group_size=layer.group_size, bits=4, symmetric=True, scales_exact_in_bfloat16=True
    )


def our_arm(codes: AffineCodes, activation: str, total_bytes: int) -> Arm:
    packed = int4.pack(codes).data
    views = torch.empty((max(1, total_bytes // packed.numel()), packed.numel()), dtype=torch.uint8)
    views.copy_(packed)
    n, k = codes.codes.shape
    code, no_bias, linear = ACTIVATIONS[activation], torch.empty(0), torch.ops.vllm_omni.int4_linear
    kernel = str(_rust.select_kernel("bf16", code, 4))
    return Arm(activation, kernel, lambda x, i: linear(x, views[i], no_bias, n, k, code), len(views))


def stock_bf16_arm(codes: AffineCodes, total_bytes: int) -> Arm:
    """As ``vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm`` sets it up."""
    from vllm import _custom_ops

    dense = int4.pack(codes).dequantize(torch.bfloat16)
    count = max(1, total_bytes // (2 * dense.numel()))
    handlers = [_custom_ops.create_onednn_mm(dense.t(), 32) for _ in range(count)]
    return Arm(STOCK_BF16, "onednn_mm", lambda x, i: _custom_ops.onednn_mm(handlers[i], x, None), count)


def stock_int4_arm(codes: AffineCodes, total_bytes: int) -> Arm:
    """As ``CPUWNA16LinearKernel`` sets it up: codes ``[N / 16][K][16]``, eight to a word."""
    from vllm import _custom_ops
    from vllm.model_executor.kernels.linear.mixed_precision import cpu

    n, k = codes.codes.shape
    words = codes.codes.to(torch.int64).view(n // 16, 2, 8, k)
    shifted = (words << (4 * torch.arange(8))[None, None, :, None]).sum(2)
    weight = torch.where(shifted >= 1 << 31, shifted - (1 << 32), shifted).to(torch.int32)
    weight = weight.permute(0, 2, 1).reshape(n // 16, 2 * k).contiguous()
    scales = codes.scales.to(torch.bfloat16).t().contiguous()
    hint = cpu._get_isa_hint(torch.bfloat16)
    count = max(1, total_bytes // (4 * weight.numel() + 2 * scales.numel()))
    weights = [(weight.clone(), scales.clone()) for _ in range(count)]

    def call(x: torch.Tensor, i: int) -> torch.Tensor:
        return _custom_ops.cpu_gemm_wna16(x, *weights[i], None, None, None, 8, hint)

    return Arm(STOCK_INT4, f"cpu_gemm_wna16-{hint}", call, len(weights))


def relative_error(codes: AffineCodes, x: torch.Tensor, y: torch.Tensor) -> float:
    """‖y − xWᵀ‖ ÷ ‖xWᵀ‖ in float64, over the first, the last and rows in between."""
    rows = torch.linspace(0, len(x) - 1, min(CHECKED_ROWS, len(x))).long()
    expected = x[rows].double() @ int4.pack(codes).dequantize().double().t()
    return float((y[rows].double() - expected).norm() / expected.norm())


def measure(arms: Sequence[Arm], codes: AffineCodes, m: int, threads: int, samples: int) -> list[Measurement]:
    """Check every arm's result, then time them in turns. Raises :class:`OmniError` for a wrong result."""
    torch.set_num_threads(threads)
    x = torch.randn(m, codes.codes.shape[1], generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    errors, calls = [], []
    for arm in arms:
        errors.append(relative_error(codes, x, arm.call(x, 0)))
        # Written so that NaN fails.
        if not errors[-1] <= TOLERANCE[arm.name]:
            limit = TOLERANCE[arm.name]
            raise OmniError(f"{arm.name}, M = {m}: relative error {errors[-1]:.2e}, expected at most {limit}")
        once = min(_elapsed_ns(arm, x, 1, turn) for turn in range(2))
        calls.append(max(1, round(SAMPLE_NS / once)))
    times: list[list[int]] = [[] for _ in arms]
    for sample in range(samples):
        # Rotated, and backwards every other time, so that no arm always follows the same one.
        for turn in range(len(arms)):
            which = (sample + (turn if sample % 2 == 0 else -turn)) % len(arms)
            times[which].append(_elapsed_ns(arms[which], x, calls[which], sample * calls[which]))
    return [
        Measurement(arm.name, arm.kernel, m, threads, count, error, taken)
        for arm, count, error, taken in zip(arms, calls, errors, times, strict=True)
    ]


def _elapsed_ns(arm: Arm, x: torch.Tensor, calls: int, first: int) -> int:
    start = time.perf_counter_ns()
    for i in range(first, first + calls):
        arm.call(x, i % arm.weights)
    return time.perf_counter_ns() - start


def record(layer: Layer, found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """One M of the artifact: raw samples, and our arms in speeds of the stock ones."""
    stock = [other for other in found if other.arm not in OURS]
    rows = []
    for one in found:
        row = asdict(layer) | asdict(one) | {"call_ns": one.call_ns, "gflops": one.gflops(layer)}
        if one.arm in OURS:
            row["times_faster_than"] = {other.arm: one.times_faster(other) for other in stock}
        rows.append(row)
    return rows


def _line(layer: Layer, rows: Sequence[dict[str, Any]]) -> str:
    text = f"{layer.n}x{layer.k} g{layer.group_size} threads {rows[0]['threads']} M {rows[0]['m']:>5}:"
    for row in rows:
        text += f"  {row['arm']} {row['call_ns'] / 1e3:.0f} us"
        for other, (ratio, low, high) in row.get("times_faster_than", {}).items():
            text += f" ({ratio:.2f} [{low:.2f}, {high:.2f}] x {other})"
    return text


def slower_than_stock(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where one of our arms is slower than a stock arm by more than the interval."""
    return [
        f"{row['n']}x{row['k']}, M = {row['m']}, threads {row['threads']}: {row['arm']} has {ratio:.2f} "
        f"[{low:.2f}, {high:.2f}] of the speed of {other}"
        for row in rows
        for other, (ratio, low, high) in row.get("times_faster_than", {}).items()
        if high < 1
    ]


def main(
    shapes: Annotated[str, typer.Option(help="Layers, NxK.")] = "4096x2048,2048x6144",
    groups: Annotated[str, typer.Option(help="Columns per scale.")] = "128",
    m: Annotated[
        str, typer.Option("--m", help="Tokens.")
    ] = "1,2,3,4,6,8,12,16,24,32,64,128,256,512,1024,2048,4096",
    activation: Annotated[str, typer.Option(help="Ours: native and int8.")] = "native,int8",
    stock: Annotated[str, typer.Option(help="stock-bf16 and stock-int4.")] = f"{STOCK_BF16},{STOCK_INT4}",
    threads: Annotated[str, typer.Option(help="Of torch.")] = "2",
    samples: Annotated[int, typer.Option(min=3, help="Rounds.")] = 20,
    buffer_mib: Annotated[
        int | None, typer.Option(min=1, help="Rotated over, for each arm; default 4 x the last-level cache.")
    ] = None,
    allow_cached: Annotated[bool, typer.Option(help="Allow a buffer that fits the cache.")] = False,
    never_slower: Annotated[
        bool, typer.Option("--never-slower", help="Exit with 1 where ours is slower than stock.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="New file for the results, JSON.")] = None,
) -> None:
    """Time our kernels at M tokens beside what stock vLLM runs for the same layer."""
    try:
        if out is not None:
            refuse_existing(out)
        layers = [
            Layer(n, k, group)
            for (n, k), group in itertools.product(shapes_of(shapes), integers(groups, "--groups"))
        ]
        ours = names(activation, "--activation", tuple(OURS))
        others = names(stock, "--stock", (STOCK_BF16, STOCK_INT4))
        cells = list(itertools.product(positive(threads, "--threads"), positive(m, "--m")))
        for layer in layers:
            check_layer(layer)
        size = buffer_bytes(buffer_mib, allow_cached, copies=len(ours) + len(others))
        status = ops.status()
        if not status.native:
            raise OmniError(f"the native kernels are not in use: {status.reason}")
        before = collect_load(sorted(os.sched_getaffinity(0)))
        results: list[dict[str, Any]] = []
        for layer, found in _run(layers, ours, others, cells, size, samples):
            rows = record(layer, found)
            typer.echo(_line(layer, rows))
            results += rows
        if out is not None:
            settings = {"samples": samples, "buffer_bytes": size, "confidence": CONFIDENCE}
            title = "kernels/gemm: M tokens beside stock vLLM"
            write_new(out, probe_artifact(title, {"settings": settings, "results": results}, before=before))
    except OmniError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    slower = slower_than_stock(results)
    for line in slower:
        typer.echo(f"slower than stock: {line}")
    if slower and never_slower:
        sys.exit(1)


def _run(
    layers: Sequence[Layer],
    ours: Sequence[str],
    others: Sequence[str],
    cells: Sequence[tuple[int, int]],
    size: int,
    samples: int,
) -> Iterator[tuple[Layer, list[Measurement]]]:
    make_stock = {STOCK_BF16: stock_bf16_arm, STOCK_INT4: stock_int4_arm}
    for layer in layers:
        codes = made_layer(layer)
        arms = [our_arm(codes, name, size) for name in ours]
        arms += [make_stock[name](codes, size) for name in others]
        for threads, m in cells:
            yield layer, measure(arms, codes, m, threads, samples)
