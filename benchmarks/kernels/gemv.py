"""One token through one layer, as a fraction of what reading its bytes alone would take.

Decode multiplies every weight once per token, so a GEMV is as fast as its packed bytes arrive from memory.
A sample is a pass of the operator over a buffer full of packed weights that is several times as large as the
last-level cache; its counterpart reads the same buffer in one call of the read ceiling, on the same threads.
Passes alternate, which of the two comes first too: memory bandwidth of a shared machine changes by the
minute, so the fraction is taken within each pair and its median reported. The operator's time includes one
call through torch per weight; what each takes on the way is measured apart (``call_ns``): the same call for
16 outputs whose weight is in the cache, without a parallel region.

Each configuration's layers together are one more figure, weighted by their bytes: each shape counts once.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import typer

from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
from benchmarks.edge_harness.provenance.collect import collect_load
from benchmarks.edge_harness.provenance.probe import probe_artifact
from benchmarks.kernels.options import integers, names, shapes_of
from benchmarks.kernels.rotation import buffer_bytes
from benchmarks.kernels.weights import (
    PACKED,
    TABLES,
    Copies,
    Weight,
    allocate,
    as_operand,
    fill,
    multiply,
    packed_weights,
    store,
    tables,
)
from vllm_omni import _rust, ops
from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import OmniError

Dtype = Literal["bf16", "f16", "f32"]
DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# Relative L2 error against float64: rounding the output to its type; int8 activations of a normal
# distribution, scaled by the largest of 128.
ROUNDING: dict[Dtype, float] = {"bf16": 4e-3, "f16": 5e-4, "f32": 1e-5}
TOLERANCE = {"native": 0.0, "int8": 2e-2, "int8_32": 2e-2}
CALL_OUTPUTS, CALL_SAMPLES = 16, 200


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
    call_ns: int

    @property
    def fraction(self) -> float:
        """Median over the pairs of ceiling time ÷ kernel time."""
        return statistics.median(c / k for k, c in zip(self.kernel_ns, self.ceiling_ns, strict=True))

    def gb_per_s(self, times_ns: list[int]) -> float:
        """Median rate of one side."""
        return self.bytes_read / statistics.median(times_ns)


def measure(case: Case, copies: Copies, buffer: torch.Tensor, samples: int) -> Measurement:
    """Check the result, then time. Raises :class:`OmniError` for a wrong result."""
    torch.set_num_threads(case.threads)
    weight = case.weight
    x = torch.randn(weight.k, generator=torch.Generator().manual_seed(2)).to(DTYPES[case.dtype])
    linear = multiply(weight, case.activation)
    operands = [as_operand(weight, view) for view in copies.views]
    error = copies.relative_error(x, linear(x, operands[-1]))
    tolerance = TOLERANCE[case.activation] + ROUNDING[case.dtype]
    # Written so that NaN fails.
    if not error <= tolerance:
        raise OmniError(f"{case}: relative error {error:.2e}, expected at most {tolerance}")
    bytes_read = len(operands) * copies.views[0].numel()
    memory = buffer[:bytes_read].numpy()

    def kernel_pass() -> None:
        for operand in operands:
            linear(x, operand)

    def ceiling_pass() -> None:
        _rust.read_ceiling(memory)

    passes = (kernel_pass, ceiling_pass)
    for warm_up in passes:
        warm_up()
    times: tuple[list[int], list[int]] = ([], [])
    for sample in range(samples):
        for side in (0, 1) if sample % 2 == 0 else (1, 0):
            times[side].append(_elapsed_ns(passes[side]))
    call_ns = _call_ns(case, x)
    return Measurement(_kernel(case), error, len(operands), bytes_read, *times, call_ns=call_ns)


def _kernel(case: Case) -> str:
    if case.weight.stored == PACKED:
        return str(_rust.select_kernel(case.dtype, ACTIVATIONS[case.activation], case.weight.bits))
    return str(_rust.select_dense_kernel(case.dtype, cast(Dtype, case.weight.stored)))


def _call_ns(case: Case, x: torch.Tensor) -> int:
    """What a call takes on the way to a layer: torch, the plan, and the preparation of the activations.

    The same call on 16 outputs whose weight is in the cache. That is one task, so the start and the end of a
    parallel region are not in it, and the arithmetic of 16 outputs is.
    """
    weight = replace(case.weight, n=CALL_OUTPUTS)
    operand = as_operand(weight, store(weight)[0])
    linear = multiply(weight, case.activation)
    times = [_elapsed_ns(lambda: linear(x, operand)) for _ in range(CALL_SAMPLES)]
    return round(statistics.median(times))


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


@dataclass(frozen=True)
class Together:
    """All shapes of one configuration. ``fraction_of_ceiling`` is weighted by their bytes."""

    kernel: str
    bits: int
    group_size: int
    zeros: str
    stored: str
    dtype: Dtype
    activation: str
    threads: int
    shapes: int
    weight_bytes: int
    fraction_of_ceiling: float

    def line(self) -> str:
        return (
            f"{self.kernel:20} {self.shapes} shapes     g{self.group_size:<4} zeros {self.zeros:4} "
            f"act {self.activation:7} threads {self.threads}: {self.fraction_of_ceiling:.1%} of the ceiling"
        )


def together(found: Sequence[tuple[Case, Measurement]]) -> list[Together]:
    """A row for each configuration: bytes ÷ Σ (bytes ÷ fraction), over one weight of each shape."""
    rows: dict[Case, list[Measurement]] = {}
    for case, m in found:
        rows.setdefault(replace(case, weight=replace(case.weight, n=0, k=0)), []).append(m)
    result = []
    for case, shapes in rows.items():
        sizes = [m.bytes_read // m.weights for m in shapes]
        slowed = [size / m.fraction for size, m in zip(sizes, shapes, strict=True)]
        w = case.weight
        result.append(
            Together(
                shapes[0].kernel,
                *(w.bits, w.group_size, w.zeros, w.stored),
                *(case.dtype, case.activation, case.threads),
                len(shapes),
                sum(sizes),
                sum(sizes) / sum(slowed),
            )
        )
    return result


def _line(case: Case, m: Measurement) -> str:
    w = case.weight
    return (
        f"{m.kernel:20} {w.n:>6}x{w.k:<6} g{w.group_size:<4} zeros {w.zeros:4} act {case.activation:7} "
        f"threads {case.threads}: {m.gb_per_s(m.kernel_ns):6.1f} of {m.gb_per_s(m.ceiling_ns):6.1f} GB/s "
        f"= {m.fraction:4.0%}, a call {m.call_ns / 1e3:.1f} us"
    )


def main(
    shapes: Annotated[str, typer.Option(help="Weights, NxK.")] = "4096x2048,2048x6144",
    bits: Annotated[str, typer.Option(help="4 and 8.")] = "4,8",
    groups: Annotated[str, typer.Option(help="Columns per scale; -1 is the whole row.")] = "32,64,128",
    zeros: Annotated[str, typer.Option(help="none (symmetric) and u8.")] = "none,u8",
    activation: Annotated[str, typer.Option(help="native, int8 and int8_32.")] = "native,int8",
    dtype: Annotated[str, typer.Option(help="Of the activations: bf16, f16 and f32.")] = "bf16",
    unquantized: Annotated[
        str | None,
        typer.Option("--tables", help="Row-major tables instead of packed weights: bf16 and f16."),
    ] = None,
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
        layers = shapes_of(shapes)
        weights = packed_weights(
            layers,
            names(bits, "--bits", ("4", "8")),
            integers(groups, "--groups"),
            names(zeros, "--zeros", ("none", "u8")),
        )
        activations = names(activation, "--activation", tuple(TOLERANCE))
        if unquantized is not None:
            weights = tables(layers, names(unquantized, "--tables", tuple(TABLES)))
            if "native" not in activations:
                raise OmniError(
                    f"--activation {activation}: expected native, which tables are multiplied with"
                )
            activations = ["native"]
        calls = [
            (cast(Dtype, d), a, t)
            for d, a, t in itertools.product(
                names(dtype, "--dtype", tuple(DTYPES)),
                activations,
                integers(threads, "--threads"),
            )
        ]
        size = buffer_bytes(buffer_mib, allow_cached)
        status = ops.status()
        if not status.native:
            raise OmniError(f"the native kernels are not in use: {status.reason}")
        before = collect_load(sorted(os.sched_getaffinity(0)))
        found = []
        for case, m in _run(weights, calls, size, mapping, samples):
            typer.echo(_line(case, m))
            found.append((case, m))
        summary = together(found)
        if len(layers) > 1:
            typer.echo("\n".join(row.line() for row in summary))
        if out is not None:
            settings = {"samples": samples, "buffer_bytes": size, "mapping": mapping}
            results = [result(case, m) for case, m in found]
            record = {"settings": settings, "together": [asdict(row) for row in summary], "results": results}
            title = "kernels/gemv: fraction of the read ceiling"
            write_new(out, probe_artifact(title, record, before=before))
    except OmniError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    lowest = min(m.fraction for _, m in found)
    typer.echo(f"lowest: {lowest:.0%} of the read ceiling")
    if lowest < minimum:
        typer.echo(f"error: expected at least {minimum:.0%}", err=True)
        sys.exit(1)


def _run(
    weights: list[Weight], calls: list[tuple[Dtype, str, int]], size: int, mapping: str, samples: int
) -> Iterator[tuple[Case, Measurement]]:
    buffer = allocate(size, mapping)
    for weight in weights:
        copies = fill(buffer, weight)
        for dtype, activation, threads in calls:
            case = Case(weight, dtype, activation, threads)
            yield case, measure(case, copies, buffer, samples)
