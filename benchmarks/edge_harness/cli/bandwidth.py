"""``bandwidth``: how fast the cores read memory, per thread count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    threads: Annotated[str | None, typer.Option(metavar="LIST", help="Default: 1, 2, 4 … all cores.")] = None,
    passes: Annotated[int, typer.Option(min=1, help="Passes over the buffer.")] = 20,
    buffer_mb: Annotated[
        int | None, typer.Option(min=1, help="Default: 4 x the last-level cache, at least 268.")
    ] = None,
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Run on busy cores; the result says who was on them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an artifact to the new FILE.")
    ] = None,
) -> None:
    """Read a buffer larger than the caches with plain loads: the ceiling of every decode step.

    bandwidth
    bandwidth --threads 1,2,8 --passes 50 --out bandwidth.json

    Every thread count runs in a fresh process that is pinned to as many cores.
    """
    from benchmarks.edge_harness.cli.probe_output import ProbeOutput, cores_for
    from benchmarks.edge_harness.cli.probe_runs import SampleSet
    from benchmarks.edge_harness.cli.speed_sweep import thread_counts, threads_text
    from benchmarks.edge_harness.measure import fresh_process

    wanted = thread_counts(threads) if threads else doublings(thread_counts(None)[0])
    output = ProbeOutput("bandwidth", out, cores=cores_for(max(wanted)), allow_busy=allow_busy)
    sets = []
    for count in wanted:
        command = fresh_process.program("bandwidth", "--threads", str(count), "--passes", str(passes))
        if buffer_mb is not None:
            command += ["--buffer-mb", str(buffer_mb)]
        title = threads_text(count)
        sets.append(SampleSet.of(title, output.measure(command, title, threads=count)))
    runs = [dict(one.child.record) for one in sets]
    output.line("threads   median GB/s      best     worst")
    for run_ in runs:
        rates = (run_["ceiling_gbps"], run_["ceiling_gbps_best"], run_["ceiling_gbps_worst"])
        output.line(f"{run_['threads']:7} {rates[0]:13.1f} {rates[1]:9.1f} {rates[2]:9.1f}")
    best = max(runs, key=lambda found: found["ceiling_gbps"])
    multiple = best["cache_multiple"]
    notes = [f"buffer of {best['buffer_mb']:.0f} MB"]
    if multiple is not None:
        notes = [f"{notes[0]}, {multiple:.1f} times the last-level cache"]
        if multiple < 4:
            notes.append("the buffer is less than 4 times the last-level cache: a part was read from it")
    output.finish(
        {
            "ceiling_gbps": best["ceiling_gbps"],
            "threads": best["threads"],
            "samples": best["samples"],
            "runs": runs,
            "notes": notes,
        },
        sets,
        metric="ceiling_gbps",
        in_runs=("runs", "samples"),
    )


def doublings(most: int) -> list[int]:
    """1, 2, 4 … and ``most``."""
    found = []
    count = 1
    while count < most:
        found.append(count)
        count *= 2
    return [*found, most]
