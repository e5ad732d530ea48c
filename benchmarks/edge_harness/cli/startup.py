"""``startup``: from the start of the process to the first token, part by part, cold and warm."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

PARTS = ("import_s", "config_s", "load_s", "compile_s", "warm_up_s", "first_token_s")


def run(
    model: Annotated[Path, typer.Option(metavar="DIR", help="A model folder.")],
    repeats: Annotated[int, typer.Option(min=1, help="Warm starts.")] = 3,
    cold: Annotated[bool, typer.Option(help="Begin with a start on an empty compile cache.")] = True,
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM: our plugin does nothing.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to compute on [default: all].")] = None,
    context_len: Annotated[int, typer.Option(min=128, help="Tokens of a context.")] = 2048,
    engine_args: Annotated[str, typer.Option(metavar="JSON", help="For vLLM's EngineArgs.")] = "{}",
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Run on busy cores; the result says who was on them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an artifact to the new FILE.")
    ] = None,
) -> None:
    """Start the engine in fresh processes: import, configuration, load, compile, warm-up, first token.

    startup --model smollm2
    startup --model smollm2 --repeats 5 --stock --out startup.json

    The compile cache is a new folder of this command: the first start finds it empty, the others what the
    first one left. Files of the model and of Python are in the page cache from the second start on; the first
    one finds what the machine happens to hold.
    """
    from benchmarks.edge_harness.cli.engine_options import engine_options
    from benchmarks.edge_harness.cli.model_folder import model_folder
    from benchmarks.edge_harness.cli.probe_output import ProbeOutput, cores_for
    from benchmarks.edge_harness.cli.probe_runs import SampleSet
    from benchmarks.edge_harness.measure import fresh_process

    sets: list[SampleSet] = []
    with tempfile.TemporaryDirectory(prefix="edge-harness-startup-") as folder:
        options = engine_options(
            stock=stock, engine_args=engine_args, cache_root=Path(folder), threads=threads
        )
        command = fresh_process.program(
            "start", "--model", str(model_folder(model)), "--context-len", str(context_len), *options
        )
        output = ProbeOutput("startup", out, cores=cores_for(threads), allow_busy=allow_busy)
        # Without a cold start asked for, one is needed all the same to fill the cache; it is not reported.
        for number in range(repeats + 1):
            title = f"{model.resolve().name}: " + (f"warm start {number}" if number else "cold start")
            child = output.measure(command, title, threads=threads)
            sets.append(SampleSet("startup", child, child.record, number + 1, cold_cache=number == 0))
    record = startup_record([one.child.record for one in sets], cold)
    for name in ("ready_s", *PARTS):
        shown = f"{name:14} warm {record[name]:7.2f} s"
        output.line(shown + (f"   cold {record['cold_' + name]:7.2f} s" if cold else ""))
    output.finish(
        record, sets if cold else sets[1:], metric="ready_s", model=model, in_runs=("starts", "samples")
    )


def startup_record(starts: Sequence[Mapping[str, Any]], cold: bool) -> dict[str, Any]:
    """``starts``: the cold one first. Medians of the warm ones under the metrics' own names."""
    first, warm = starts[0], starts[1:]
    names = [name for name in ("ready_s", "init_s", *PARTS) if name in first]
    record: dict[str, Any] = {name: statistics.median(start[name] for start in warm) for name in names}
    if cold:
        record |= {f"cold_{name}": first[name] for name in names}
    return record | {
        "samples": {name: [start[name] for start in warm] for name in names},
        "starts": [dict(start) for start in (starts if cold else warm)],
        "process": warm[-1]["process"],
        "notes": [] if len(warm) > 1 else ["one warm start: its spread is not known"],
    }
