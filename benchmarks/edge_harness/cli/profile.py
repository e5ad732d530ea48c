"""``profile``: where a decode step's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def run(
    model: Annotated[Path, typer.Option(metavar="DIR", help="A model folder.")],
    prompt_len: Annotated[int, typer.Option(min=1, help="Tokens in the context before the steps.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps of one repeat.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats: the spread is over them.")] = 5,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to compute on [default: all].")] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM: our plugin does nothing.")] = False,
    engine_args: Annotated[str, typer.Option(metavar="JSON", help="For vLLM's EngineArgs.")] = "{}",
    cache_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="vLLM's compile cache [default: the user's].")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Operators to show.")] = 20,
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Run on busy cores; the result says who was on them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an artifact to the new FILE.")
    ] = None,
) -> None:
    """Self time of every operator of a decode step, in buckets that add up to the wall time.

    profile --model smollm2
    profile --model smollm2 --prompt-len 2048 --repeats 9 --out profile.json

    Buckets: GEMM, attention, norm and activation, sampling, framework; what ran outside every operator is
    uncovered, and printed.
    """
    from benchmarks.edge_harness.cli.engine_options import engine_options
    from benchmarks.edge_harness.cli.model_folder import model_folder
    from benchmarks.edge_harness.cli.probe_output import ProbeOutput, cores_for
    from benchmarks.edge_harness.cli.probe_runs import SampleSet
    from benchmarks.edge_harness.measure.fresh_process import program

    command = program(
        "profile",
        *("--model", str(model_folder(model)), "--prompt-len", str(prompt_len)),
        *("--steps", str(steps), "--repeats", str(repeats), "--batch", str(batch)),
        *engine_options(stock=stock, engine_args=engine_args, cache_root=cache_root, threads=threads),
    )
    output = ProbeOutput("profile", out, cores=cores_for(threads), allow_busy=allow_busy)
    child = output.measure(command, f"profile of {model.resolve().name}", threads=threads)
    record = dict(child.record)
    for line in lines(record, top):
        output.line(line)
    output.finish(record, [SampleSet.of("profile", child)], metric="step_ms", model=model)


def lines(record: dict[str, Any], top: int) -> list[str]:
    """Buckets, then the longest operators."""
    wall = record["profiled_step_ms"]
    shown = [
        f"step {record['step_ms']:.3f} ms; profiled {wall:.3f} ms ({record['profiling_cost']:+.0%})",
        "",
    ]
    for name in ("gemm", "attention", "norm_activation", "sampling", "framework", "uncovered"):
        value, sd = record[f"{name}_ms"], record["sd_ms"][f"{name}_ms"]
        spread = "" if sd is None else f" ± {sd:.3f}"
        shown.append(f"{name:16} {value:8.3f}{spread:8} ms {value / wall:6.1%}")
    shown.append("")
    for op in record["ops"][:top]:
        shown.append(f"{op['self_ms']:8.3f} ms {op['calls_per_step']:6.0f} x {op['bucket']:16} {op['name']}")
    return shown
