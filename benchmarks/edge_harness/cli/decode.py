"""``decode``: tokens per second after the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def run(
    model: Annotated[Path, typer.Option(metavar="DIR", help="A model folder.")],
    tokens: Annotated[
        int, typer.Option("--tokens", "-n", min=2, help="Decoded, and timed, per sequence.")
    ] = 128,
    depth: Annotated[
        str, typer.Option(metavar="LIST", help="Tokens in the KV cache before; 0 is an empty one, and noted.")
    ] = "512",
    batch: Annotated[str, typer.Option(metavar="LIST", help="Sequences at once.")] = "1",
    threads: Annotated[str | None, typer.Option(metavar="LIST", help="Default: all cores.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repetitions in each process.")] = 5,
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM: our plugin does nothing.")] = False,
    ceiling: Annotated[bool, typer.Option(help="Measure the read ceiling before and after.")] = True,
    engine_args: Annotated[str, typer.Option(metavar="JSON", help="For vLLM's EngineArgs.")] = "{}",
    cache_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="vLLM's compile cache [default: the user's].")
    ] = None,
    form: Annotated[
        Literal["json", "md", "csv"], typer.Option("--format", help="Of the standard output.")
    ] = "json",
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Run on busy cores; the result says who was on them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an artifact to the new FILE.")
    ] = None,
) -> None:
    """Decode exact numbers of tokens on a filled KV cache; every thread count in a fresh pinned process.

    decode --model smollm2
    decode --model smollm2 --threads 1,2 --batch 1,4 --depth 512,2048,8192 --format md

    Greedy, nothing detokenized, warmed up until the step time holds still. A step's bytes (weights and KV
    cache) over its time is shown as a share of the read ceiling, measured in the same process.
    """
    from benchmarks.edge_harness.cli import speed_sweep
    from benchmarks.edge_harness.cli.engine_options import engine_options
    from benchmarks.edge_harness.cli.model_folder import model_folder
    from benchmarks.edge_harness.cli.probe_output import ProbeOutput, cores_for

    tests = [
        {
            "prompt_tokens": max(1, depth_tokens),
            # The first token is the prompt's; as many again are timed.
            "decode_tokens": tokens + 1,
            "batch": sequences,
            "repeats": repeats,
            "empty_cache": depth_tokens == 0,
        }
        for sequences, depth_tokens in speed_sweep.product(
            speed_sweep.counts(batch, "--batch", 1), speed_sweep.counts(depth, "--depth", 0)
        )
    ]
    threads_wanted = speed_sweep.thread_counts(threads)
    speed_sweep.sweep(
        "tg",
        model=model_folder(model),
        tests=tests,
        threads=threads_wanted,
        options=engine_options(stock=stock, ceiling=ceiling, engine_args=engine_args, cache_root=cache_root),
        engine="vllm-stock" if stock else "ours",
        cache_root=cache_root,
        output=ProbeOutput("decode", out, cores=cores_for(max(threads_wanted)), allow_busy=allow_busy),
        form=form,
    )
