"""``ledger``: what an engine's anonymous memory is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def run(
    model: Annotated[Path, typer.Option(metavar="DIR", help="A model folder.")],
    context_len: Annotated[int, typer.Option(min=128, help="Tokens that fill the context.")] = 1536,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to compute on [default: all].")] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM: our plugin does nothing.")] = False,
    engine_args: Annotated[str, typer.Option(metavar="JSON", help="For vLLM's EngineArgs.")] = "{}",
    cache_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="vLLM's compile cache [default: the user's].")
    ] = None,
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Run on busy cores; the result says who was on them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an artifact to the new FILE.")
    ] = None,
) -> None:
    """Attribute settled memory: weights, tables, KV cache, RoPE, imports, compiled code, allocator.

    ledger --model smollm2
    ledger --model smollm2-bf16 --stock --out ledger.json

    Pages are counted in this process's page table, tensor by tensor. What nothing explains is shown.
    """
    from benchmarks.edge_harness.cli.compile_cache import CompileCache
    from benchmarks.edge_harness.cli.engine_options import engine_options
    from benchmarks.edge_harness.cli.model_folder import model_folder
    from benchmarks.edge_harness.cli.probe_output import ProbeOutput, cores_for
    from benchmarks.edge_harness.cli.probe_runs import SampleSet
    from benchmarks.edge_harness.measure.fresh_process import program

    command = program(
        "ledger",
        *("--model", str(model_folder(model)), "--context-len", str(context_len)),
        *engine_options(stock=stock, engine_args=engine_args, cache_root=cache_root, threads=threads),
    )
    output = ProbeOutput("ledger", out, cores=cores_for(threads), allow_busy=allow_busy)
    title = f"ledger of {model.resolve().name}"
    child = output.measure(command, title, threads=threads, cache=CompileCache(cache_root))
    record = dict(child.record)
    for line in lines(record):
        output.line(line)
    output.finish(record, [SampleSet.of("ledger", child)], metric="rss_anon_tree_mb", model=model)


def lines(record: dict[str, Any]) -> list[str]:
    """One line per entry, largest first, then the rest and the sum."""
    total = record["rss_anon_tree_mb"]
    shown = [f"{'':34} {'anonymous':>10} {'mapped':>9} {'allocated':>10}"]
    for entry in sorted(record["entries"], key=lambda found: -found["anonymous_mb"]):
        allocated = "" if entry["allocated_mb"] is None else f"{entry['allocated_mb']:10.1f}"
        note = f"  {entry['note']}" if entry["note"] else ""
        figures = f"{entry['anonymous_mb']:10.1f} {entry['mapped_mb']:9.1f} {allocated:>10}"
        shown.append(f"{entry['name']:34} {figures}{note}")
    shown.append(f"{'unattributed':34} {record['unattributed_mb']:10.1f}  {record['unattributed_share']:.1%}")
    without_owner, share = record["unattributed_with_residual_mb"], record["unattributed_share_with_residual"]
    shown.append(f"{'without a known owner, in all':34} {without_owner:10.1f}  {share:.1%}")
    shown.append(f"{'RssAnon, settled (MB)':34} {total:10.1f}")
    return shown
