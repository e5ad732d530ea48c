"""``python -m benchmarks.edge_harness.adapters.peers``: build the engines that we compare ourselves with.

How ``baselines/<machine>/`` gets llama.cpp's figures, once the peer is built:

1. Thread sweep, of the engine's own program (``peers sweep``): pinned, one artifact per thread count.
2. Interleaved passes beside ours: the grid on ``specs/llama-passes.json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.edge_harness.adapters.build import (
    build,
    check_processor,
    converter_plan,
    find_uv,
    finish,
    installed_versions,
    plan,
    read_mark,
)
from benchmarks.edge_harness.adapters.recipes import RECIPES, Recipe, Step, recipe
from vllm_omni.errors import OmniError

DEFAULT_PEER = "llama.cpp"

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Build the engines that ours is compared with; each in the user's cache, none in the repository.

    python -m benchmarks.edge_harness.adapters.peers list
    python -m benchmarks.edge_harness.adapters.peers build llama.cpp
    make peers PEERS="llama.cpp ik_llama.cpp"
""",
)


@app.command("list")
def list_peers() -> None:
    """Every peer: version, whether it is built here, and whether its program has ever been run."""
    for peer in RECIPES.values():
        run = peer.run_here or "its program has never been run"
        typer.echo(f"{peer.name:18} {peer.version:12} {state(peer):42} {run}")


def state(peer: Recipe) -> str:
    """Built, buildable or refused, in a few words."""
    if refusal := check_processor(peer):
        return refusal.partition(":")[0].removeprefix(f"{peer.name} ")
    record = read_mark(peer)
    return f"built {record['built_utc'][:10]}" if record else f"not built: make peers PEERS={peer.name}"


@app.command("build")
def build_peers(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PEER]...", help="As `list` names them (default: llama.cpp)"),
    ] = None,
    converter: Annotated[
        bool, typer.Option(help="Also what converts models for the engine (gigabytes of packages).")
    ] = False,
) -> None:
    """Build each PEER; a build that was interrupted goes on where it stopped.

    python -m benchmarks.edge_harness.adapters.peers build llama.cpp
    """
    peers = [recipe(name) for name in names or [DEFAULT_PEER]]
    for peer in peers:
        if refusal := check_processor(peer):
            raise OmniError(refusal)
    uv = find_uv()
    for peer in peers:
        if peer.is_built:
            typer.echo(f"{peer.name} {peer.version}: built already, in {peer.folder}")
        else:
            _run_steps(peer, plan(peer, uv))
            finish(peer, installed_versions(peer.python, uv))
            typer.echo(f"{peer.name} {peer.version}: built, in {peer.folder}")
        if converter:
            if not peer.converter_packages:
                raise OmniError(f"{peer.name}: --converter: it has none; llama-quantize is part of its build")
            _run_steps(peer, converter_plan(peer, uv))


def _run_steps(peer: Recipe, steps: list[Step]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(peer.name, total=None)
        build(
            peer,
            steps,
            on_step=lambda title: bar.update(
                task, description=f"{peer.name}: {title}", total=None, completed=0
            ),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


@app.command("convert")
def convert_model(
    name: Annotated[str, typer.Argument(metavar="PEER")],
    model: Annotated[Path, typer.Argument(metavar="DIR", help="Hugging Face folder, plain weights.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make; must not exist.")],
    group_size: Annotated[int, typer.Option(min=16, help="Columns per scale.")] = 128,
) -> None:
    """Convert a model to 4 bits with the peer's own converter (build it with --converter first).

    python -m benchmarks.edge_harness.adapters.peers convert openvino-genai qwen3-bf16 qwen3-openvino
    """
    from rich.console import Console

    from benchmarks.edge_harness.adapters.convert import convert

    with Console(stderr=True).status(f"{name}: converting {model.name}"):
        convert(recipe(name), model, out, group_size)
    typer.echo(f"{out}")


@app.command("sweep")
def sweep(
    model: Annotated[Path, typer.Argument(metavar="FILE.gguf")],
    out_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Gets one new file per thread count.")],
    peer_name: Annotated[str, typer.Option("--peer", help="llama.cpp or ik_llama.cpp")] = DEFAULT_PEER,
    threads: Annotated[
        str | None, typer.Option(help="Counts, separated by commas (default: 1, 2, 4, … the allowed CPUs)")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option("--prompt-len", min=1)] = 512,
    decode_tokens: Annotated[int, typer.Option("--generate", min=1)] = 128,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    allow_busy: Annotated[bool, typer.Option(help="Measure on busy cores, and say so.")] = False,
) -> None:
    """llama-bench at every thread count, each on cores of its own; decode after --prompt-len tokens.

    python -m benchmarks.edge_harness.adapters.peers sweep model.gguf baselines/this-machine
    """
    from benchmarks.edge_harness.adapters import thread_sweep
    from benchmarks.edge_harness.adapters.llama_cpp import GgmlAdapter
    from benchmarks.edge_harness.adapters.registry import adapter
    from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
    from benchmarks.edge_harness.grid.monitors import NativeMonitors

    peer = recipe(peer_name)
    bench = peer.binaries / "llama-bench"
    engine = adapter(peer_name)
    if not isinstance(engine, GgmlAdapter):
        raise OmniError(f"--peer {peer_name}: expected llama.cpp or ik_llama.cpp, which have llama-bench")
    if not peer.is_built or not bench.is_file():
        raise OmniError(f"{peer.name} is not built: {peer.remedy}")
    counts = _counts(threads)
    files = [out_dir / f"{peer.name}-{model.stem}-t{count}.json" for count in counts]
    for file in files:
        refuse_existing(file)
    if not model.is_file():
        raise OmniError(f"{model}: expected a GGUF file, found none")
    for count, file in zip(counts, files, strict=True):
        typer.echo(f"{peer.name}: {count} threads", err=True)
        commands = [
            thread_sweep.prompt_command(engine, bench, model, count, prompt_tokens, repeats),
            thread_sweep.bench_command(engine, bench, model, count, prompt_tokens, decode_tokens, repeats),
        ]
        cores = thread_sweep.cores_of(count)
        monitors = NativeMonitors()
        artifact = thread_sweep.bench_artifact(engine, model, commands, cores, monitors, allow_busy)
        write_new(file, artifact)
        typer.echo(str(file))


def _counts(text: str | None) -> list[int]:
    most = len(os.sched_getaffinity(0))
    if text is None:
        return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise OmniError(f"--threads {text}: expected integers separated by commas") from None
    if not all(1 <= count <= most for count in counts):
        raise OmniError(f"--threads {text}: expected 1 to {most}, the CPUs that this process may use")
    return counts


def main(args: list[str] | None = None) -> int:
    """Run one command line; the exit code."""
    try:
        app(args=args, prog_name="peers", standalone_mode=False)
    except OmniError as error:
        line = str(error)
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        line = str(error)
    except Exception as error:
        # Usage errors of typer share no public class with a message.
        if not hasattr(error, "format_message"):
            raise
        line = error.format_message()
    else:
        return 0
    print(f"error: {' '.join(line.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
