"""``fidelity``: how far a build's answers are from those of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def run(
    model: Annotated[Path, typer.Option(help="The model folder to judge: packed, GPTQ or bf16.")],
    out: Annotated[Path, typer.Option(help="The new result file.")],
    reference: Annotated[
        Path | None,
        typer.Option(help="GGUF file or model folder with the true weights [default: the model's own]"),
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows of text, each from another topic.")] = 4,
    window_tokens: Annotated[int, typer.Option(min=64, help="Tokens of a window.")] = 640,
    path: Annotated[
        Literal["decode", "prefill", "both"],
        typer.Option(help="One token at a time, or whole windows as prompts."),
    ] = "both",
    batch: Annotated[int, typer.Option(min=1, help="Windows that run together.")] = 1,
    greedy: Annotated[
        bool, typer.Option(help="Also 12 greedy prompts against the weights' own bf16.")
    ] = True,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of torch and of the engine [default: all cores]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
) -> None:
    """Divergence over the full vocabulary, top-1 agreement and perplexity, with the bf16 floor beside.

    The engine runs forced tokens, one at a time (decode) and as prompts (prefill); the logits of every
    position are compared with a plain fp32 forward of the reference's weights. The floor is the same forward
    in bf16.

    fidelity --model smollm2 --reference SmolLM2-135M-Instruct.Q4_1.gguf --out fidelity.json
    fidelity --model smollm2 --path decode --windows 8 --no-greedy --out decode.json
    fidelity --model qwen3 --reference qwen3-bf16 --out quantization.json

    The output is one JSON object: the figures of each path, and the file with everything else.
    """
    import sys

    from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
    from benchmarks.edge_harness.measure.thread_binding import pin
    from vllm_omni.cli import engine_defaults, in_process
    from vllm_omni.errors import OmniError

    refuse_existing(out)
    for option, place in (("--model", model), ("--reference", reference)):
        if place is not None and not place.exists():
            raise OmniError(f"{option} {place}: expected a model, found nothing")
    cores = pin(threads)
    in_process.prepare()
    engine_defaults.prepare_environment()
    from benchmarks.edge_harness.fidelity import score
    from benchmarks.edge_harness.fidelity.artifact import fidelity_artifact
    from benchmarks.edge_harness.fidelity.measurement import Options, measure
    from benchmarks.edge_harness.fidelity.report import PhaseProgress, result_lines
    from benchmarks.edge_harness.measure.emit import Output
    from benchmarks.edge_harness.provenance.load import collect_load, now_utc

    options = Options(
        model=model,
        reference=reference,
        windows=windows,
        window_tokens=window_tokens,
        paths=score.PATHS if path == "both" else (path,),
        batch=batch,
        greedy=greedy,
        seed=seed,
    )
    output = Output()
    before, started_utc = collect_load(cores), now_utc()
    with PhaseProgress() as progress:
        measured = measure(options, progress)
    result: Any = fidelity_artifact(options, measured, before=before, started_utc=started_utc)
    write_new(out, result)
    for line in (*result_lines(measured), f"written to {out}"):
        print(line, file=sys.stderr)
    paths = {run.tag: run.metrics for run in result.runs}
    output.emit({"artifact": str(out), "paths": paths, "notes": result.notes})
