"""One token through one layer, as a fraction of what reading its bytes alone would take.

Decode multiplies every weight once per token, so a GEMV is as fast as its packed bytes arrive from memory.
A sample is a pass of the operator over a buffer full of packed weights that is several times as large as the
last-level cache; its counterpart reads the same buffer in one call of the read ceiling, on the same threads.
Passes alternate, which of the two comes first too: memory bandwidth of a shared machine changes by the
minute, so the fraction is taken within each pair and its median reported. The operator's time includes one
call through torch per weight.
"""

from __future__ import annotations

import itertools
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import typer

from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
from benchmarks.edge_harness.provenance.collect import collect_load
from benchmarks.edge_harness.provenance.probe import probe_artifact
from benchmarks.kernels.options import integers, names, shapes_of
from benchmarks.kernels.rotation import buffer_bytes
from vllm_omni import _rust, int4, ops
from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import OmniError

Dtype = Literal["bf16", "f16", "f32"]
DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# Relative L2 error against float64: rounding the output to 8 bits of mantissa; int8 activations of a
# normal distribution, scaled by the largest of 128.
TOLERANCE = {"native": 4e-3, "int8": 2e-2, "int8_32": 2e-2}
NO_BIAS = torch.empty(0)


@dataclass(frozen=True)
class Weight:
    """The weight of a case. ``zeros``: ``none`` (symmetric) or ``u8``."""

    n: int
    k: int
    bits: int
    group_size: int
    zeros: str


@dataclass(frozen=True)
class Case:
    """One line of the result."""

    weight: Weight
    dtype: Dtype
    activation: str
    threads: int


@dataclass(frozen=True)
class Measurement:
    """Raw times of both sides, pair by pair, and what was read in each."""

    kernel: str
    relative_error: float
    weights: int
    bytes_read: int
    kernel_ns: list[int]
    ceiling_ns: list[int]

    @property
    def fraction(self) -> float:
        """Median over the pairs of ceiling time ÷ kernel time."""
        return statistics.median(c / k for k, c in zip(self.kernel_ns, self.ceiling_ns, strict=True))

    def gb_per_s(self, times_ns: list[int]) -> float:
        """Median rate of one side."""
        return self.bytes_read / statistics.median(times_ns)


def allocate(size: int, mapping: str) -> torch.Tensor:
    """A uint8 buffer: ``anonymous`` memory, or a mapped ``file`` as a checkpoint is."""
    if mapping == "anonymous":
        memory = mmap.mmap(-1, size)
    else:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=torch.uint8)


def fill(buffer: torch.Tensor, weight: Weight) -> list[torch.Tensor]:
    """The buffer's packed weights: one weight at as many addresses as there is room for."""
    dense = torch.randn(weight.n, weight.k, generator=torch.Generator().manual_seed(1))
    symmetric = weight.zeros == "none"
    packed = int4.quantize(dense, group_size=weight.group_size, bits=weight.bits, symmetric=symmetric).data
    count = buffer.numel() // packed.numel()
    if count == 0:
        raise OmniError(f"{weight}: {packed.numel()} packed bytes do not fit a buffer of {buffer.numel()}")
    views = list(buffer[: count * packed.numel()].view(count, packed.numel()))
    for view in views:
        view.copy_(packed)
    return views


def relative_error(packed: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    """‖y − Wx‖ ÷ ‖Wx‖ with the dequantized W in float64."""
    expected = int4.PackedWeight(packed).dequantize().double() @ x.double()
    return float((y.double() - expected).norm() / expected.norm())


def measure(case: Case, views: list[torch.Tensor], buffer: torch.Tensor, samples: int) -> Measurement:
    """Check the result, then time. Raises :class:`OmniError` for a wrong result."""
    torch.set_num_threads(case.threads)
    n, k = case.weight.n, case.weight.k
    code = ACTIVATIONS[case.activation]
    x = torch.randn(k, generator=torch.Generator().manual_seed(2)).to(DTYPES[case.dtype])
    linear = torch.ops.vllm_omni.int4_linear
    error = relative_error(views[-1], x, linear(x, views[-1], NO_BIAS, n, k, code))
    # Written so that NaN fails.
    if not error <= TOLERANCE[case.activation]:
        raise OmniError(f"{case}: relative error {error:.2e}, expected at most {TOLERANCE[case.activation]}")
    bytes_read = len(views) * views[0].numel()
    memory = buffer[:bytes_read].numpy()

    def kernel_pass() -> None:
        for view in views:
            linear(x, view, NO_BIAS, n, k, code)

    def ceiling_pass() -> None:
        _rust.read_ceiling(memory)

    passes = (kernel_pass, ceiling_pass)
    for warm_up in passes:
        warm_up()
    times: tuple[list[int], list[int]] = ([], [])
    for sample in range(samples):
        for side in (0, 1) if sample % 2 == 0 else (1, 0):
            times[side].append(_elapsed_ns(passes[side]))
    name = _rust.select_kernel(case.dtype, code, case.weight.bits)
    return Measurement(name, error, len(views), bytes_read, *times)


def _elapsed_ns(run: Callable[[], None]) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def result(case: Case, m: Measurement) -> dict[str, Any]:
    """The artifact's record of a case: what was measured, raw, and the figures that follow."""
    return (
        asdict(case)
        | asdict(m)
        | {
            "kernel_gb_per_s": m.gb_per_s(m.kernel_ns),
            "ceiling_gb_per_s": m.gb_per_s(m.ceiling_ns),
            "fraction_of_ceiling": m.fraction,
        }
    )


def _line(case: Case, m: Measurement) -> str:
    w = case.weight
    return (
        f"{m.kernel:20} {w.n:>6}x{w.k:<6} g{w.group_size:<4} zeros {w.zeros:4} act {case.activation:7} "
        f"threads {case.threads}: {m.gb_per_s(m.kernel_ns):6.1f} of {m.gb_per_s(m.ceiling_ns):6.1f} GB/s "
        f"= {m.fraction:4.0%}"
    )


def main(
    shapes: Annotated[str, typer.Option(help="Weights, NxK.")] = "4096x2048,2048x6144",
    bits: Annotated[str, typer.Option(help="4 and 8.")] = "4,8",
    groups: Annotated[str, typer.Option(help="Columns per scale; -1 is the whole row.")] = "32,64,128",
    zeros: Annotated[str, typer.Option(help="none (symmetric) and u8.")] = "none,u8",
    activation: Annotated[str, typer.Option(help="native, int8 and int8_32.")] = "native,int8",
    dtype: Annotated[str, typer.Option(help="Of the activations: bf16, f16 and f32.")] = "bf16",
    threads: Annotated[str, typer.Option(help="Of torch.")] = "1,2",
    samples: Annotated[int, typer.Option(min=1, help="Pairs of passes.")] = 20,
    buffer_mib: Annotated[
        int | None, typer.Option(min=1, help="Rotated over; default 4 x the last-level cache.")
    ] = None,
    allow_cached: Annotated[bool, typer.Option(help="Allow a buffer that fits the cache.")] = False,
    mapping: Annotated[str, typer.Option(help="anonymous, or file as a checkpoint is.")] = "anonymous",
    minimum: Annotated[float, typer.Option(help="Exit with 1 below this fraction.")] = 0.0,
    out: Annotated[Path | None, typer.Option(help="New file for the results, JSON.")] = None,
) -> None:
    """Time the GEMV kernels against the read ceiling of the machine."""
    try:
        if out is not None:
            refuse_existing(out)
        names(mapping, "--mapping", ("anonymous", "file"))
        weights = [
            Weight(n, k, int(b), group, zero)
            for (n, k), b, group, zero in itertools.product(
                shapes_of(shapes),
                names(bits, "--bits", ("4", "8")),
                integers(groups, "--groups"),
                names(zeros, "--zeros", ("none", "u8")),
            )
        ]
        calls = [
            (cast(Dtype, d), a, t)
            for d, a, t in itertools.product(
                names(dtype, "--dtype", tuple(DTYPES)),
                names(activation, "--activation", tuple(TOLERANCE)),
                integers(threads, "--threads"),
            )
        ]
        size = buffer_bytes(buffer_mib, allow_cached)
        status = ops.status()
        if not status.native:
            raise OmniError(f"the native kernels are not in use: {status.reason}")
        before = collect_load(sorted(os.sched_getaffinity(0)))
        results = []
        for case, m in _run(weights, calls, size, mapping, samples):
            typer.echo(_line(case, m))
            results.append(result(case, m))
        if out is not None:
            settings = {"samples": samples, "buffer_bytes": size, "mapping": mapping}
            record = {"settings": settings, "results": results}
            title = "kernels/gemv: fraction of the read ceiling"
            write_new(out, probe_artifact(title, record, before=before))
    except OmniError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    lowest = min(r["fraction_of_ceiling"] for r in results)
    typer.echo(f"lowest: {lowest:.0%} of the read ceiling")
    if lowest < minimum:
        typer.echo(f"error: expected at least {minimum:.0%}", err=True)
        sys.exit(1)


def _run(
    weights: list[Weight], calls: list[tuple[Dtype, str, int]], size: int, mapping: str, samples: int
) -> Iterator[tuple[Case, Measurement]]:
    buffer = allocate(size, mapping)
    for weight in weights:
        views = fill(buffer, weight)
        for call in calls:
            case = Case(weight, *call)
            yield case, measure(case, views, buffer, samples)
