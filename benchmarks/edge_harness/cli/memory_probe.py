"""``memory-probe``: what an engine, or any process, costs in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vllm_omni.errors import OmniError


def run(
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="Start an engine on this model.")] = None,
    pid: Annotated[int | None, typer.Option(min=1, help="Watch this process and its descendants.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="With --pid: how long.")] = 10.0,
    context_len: Annotated[
        int, typer.Option(min=0, help="Tokens that fill the context; 0 leaves it empty, and is noted.")
    ] = 1536,
    generate: Annotated[int, typer.Option(min=0, help="Tokens to generate.")] = 8,
    layout: Annotated[
        Literal["inproc", "default"],
        typer.Option(help="One process, or vLLM's processes; the whole tree is watched."),
    ] = "inproc",
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM: our plugin does nothing.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to compute on [default: all].")] = None,
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
    """Sample RssAnon of a whole process tree every 20 ms, and Pss_Anon at the boundaries of its phases.

    memory-probe --model smollm2
    memory-probe --model smollm2 --context-len 1536 --layout default --out memory.json
    memory-probe --pid 4242 --seconds 10

    A process that runs already is watched where it is: busy cores are noted, never refused.

    The last line of the output is one JSON object: rss_anon_tree_mb, peak_rss_anon_tree_mb, pss_anon_tree_mb,
    rss_anon_at_context_mb, ready_s, the phases, and which counter of the kernel each figure is.
    """
    if (model is None) == (pid is None):
        raise OmniError("memory-probe: expected one of --model and --pid")
    import psutil

    from benchmarks.edge_harness.cli.compile_cache import CompileCache
    from benchmarks.edge_harness.cli.model_folder import model_folder
    from benchmarks.edge_harness.cli.probe_output import ProbeOutput, cores_for
    from benchmarks.edge_harness.cli.probe_runs import SampleSet
    from benchmarks.edge_harness.measure.fresh_process import program
    from benchmarks.edge_harness.measure.memory_probe import identity_of, probe_command, probe_pid
    from benchmarks.edge_harness.provenance.probe import affinity_of

    if pid is not None:
        identity_of(pid)
        cores, _ = affinity_of(pid)
        name = psutil.Process(pid).name()
        output = ProbeOutput("memory-probe", out, cores=sorted(cores), watched_pid=pid)
        watch = output.watching(sorted(cores), memory=False)
        with output.console.status(f"watching process {pid} for {seconds:g} s"), watch(pid):
            record = probe_pid(pid, seconds)
        # Of a stranger's command line the name alone: the rest may hold secrets.
        child = output.child([name], record)
    else:
        assert model is not None
        command = program(
            "memory_child",
            *("--model", str(model_folder(model))),
            *("--context-len", str(context_len), "--generate", str(generate), "--layout", layout),
            *("--engine-args", engine_args),
            *(("--threads", str(threads)) if threads else ()),
            *(("--cache-root", str(cache_root.resolve())) if cache_root else ()),
            *(("--stock",) if stock else ()),
        )
        output = ProbeOutput("memory-probe", out, cores=cores_for(threads), allow_busy=allow_busy)
        watch, cache = output.watching(cores_for(threads), memory=False), CompileCache(cache_root)
        with output.console.status(f"memory of {model.name}") as status:
            record = probe_command(
                command, on_phase=lambda phase: status.update(f"{model.name}: {phase}"), watch=watch
            )
        child = output.child(command, record, cache)
    for phase in record["phases"]:
        pss = "" if phase["pss_anon_mb"] is None else f"   Pss_Anon {phase['pss_anon_mb']:8.1f} MB"
        output.line(f"{phase['t_s']:7.1f} s  {phase['name']:15} RssAnon {phase['rss_anon_mb']:8.1f} MB{pss}")
    for name in ("peak_rss_anon_tree_mb", "rss_anon_at_context_mb", "rss_file_tree_mb", "rss_shmem_tree_mb"):
        if name in record:
            output.line(f"{name:24} {record[name]:10.1f}   {record['counters'][name]}")
    output.finish(record, [SampleSet.of("memory-probe", child)], metric="rss_anon_tree_mb", model=model)
