"""``prefill``: tokens per second of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# Decoded after each prompt: the record has the latency of tokens as well.
_DECODED = 17


def run(
    model: Annotated[Path, typer.Option(metavar="DIR", help="A model folder.")],
    prompt_len: Annotated[str, typer.Option(metavar="LIST", help="Tokens of the prompt.")] = "512",
    depth: Annotated[str, typer.Option(metavar="LIST", help="Tokens in the KV cache before it.")] = "0",
    batch: Annotated[str, typer.Option(metavar="LIST", help="Prompts at once.")] = "1",
    threads: Annotated[str | None, typer.Option(metavar="LIST", help="Default: all cores.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repetitions in each process.")] = 5,
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM: our plugin does nothing.")] = False,
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
    """Prefill prompts of exact lengths; every thread count in a fresh pinned process.

    prefill --model smollm2
    prefill --model smollm2 --prompt-len 128,512 --threads 1,2 --format csv
    prefill --model smollm2 --prompt-len 512 --depth 0,2048

    Other token ids in every repetition, no prefix cache, tokenization excluded.
    """
    from benchmarks.edge_harness.cli import speed_sweep
    from benchmarks.edge_harness.cli.engine_options import engine_options
    from benchmarks.edge_harness.cli.model_folder import model_folder
    from benchmarks.edge_harness.cli.probe_output import ProbeOutput, cores_for

    lengths = speed_sweep.counts(prompt_len, "--prompt-len", 1)
    tests = [
        {
            "prompt_tokens": length,
            "decode_tokens": _DECODED,
            "depth": depth_tokens,
            "batch": sequences,
            "repeats": repeats,
        }
        for length in lengths
        for sequences, depth_tokens in speed_sweep.product(
            speed_sweep.counts(batch, "--batch", 1), speed_sweep.counts(depth, "--depth", 0)
        )
    ]
    threads_wanted = speed_sweep.thread_counts(threads)
    speed_sweep.sweep(
        "pp",
        model=model_folder(model),
        tests=tests,
        threads=threads_wanted,
        options=engine_options(stock=stock, ceiling=False, engine_args=engine_args, cache_root=cache_root),
        engine="vllm-stock" if stock else "ours",
        cache_root=cache_root,
        output=ProbeOutput("prefill", out, cores=cores_for(max(threads_wanted)), allow_busy=allow_busy),
        form=form,
    )
