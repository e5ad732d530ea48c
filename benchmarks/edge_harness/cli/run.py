"""``run``: a grid of arms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.edge_harness.grid.program import Program
from benchmarks.edge_harness.spec import Arm
from vllm_omni.errors import OmniError


def run(
    spec_file: Annotated[
        Path,
        typer.Option("--spec", metavar="FILE", help="Arms (JSON or TOML): tag, command, env; or adapter."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The result, a new file.")],
    passes: Annotated[
        int | None, typer.Option(min=1, help="Runs of every arm (default: the spec's, which is 7).")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="What the grid is made for: a run without it has failed (default: the spec's)."),
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Where runs go, like 0,2-5 (default: the spec's, else one per physical core).",
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Run the first arm twice over (A/A) and print the noise floor.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Expected medians and bands; a regression makes the exit code 1."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the unfinished grid of the same --out and build.")
    ] = False,
    allow_busy: Annotated[
        bool,
        typer.Option("--allow-busy", help="Run on busy cores, or beside another grid; the result says so."),
    ] = False,
    timeout_s: Annotated[
        float | None, typer.Option(help="Time limit of one run (default: the spec's, which is 2400).")
    ] = None,
    settle_s: Annotated[
        float | None, typer.Option(help="Pause between two runs (default: the spec's, which is 2).")
    ] = None,
) -> int:
    """Run every arm in every pass, each a fresh pinned process, and compare them.

    run --spec arms.json --passes 7 --metric tg_tps --cores 0-1 --out summary.json
    run --spec arms.json --metric sampled.wall_s --out wall.json --control
    run --spec arms.json --metric tg_tps --out summary.json --resume

    An arm is any command. It reports by the last JSON object on its standard
    output; sampled.wall_s, sampled.cpu_s and sampled.peak_rss_anon_tree_mb are
    there without one. A command that is one text goes to the shell, a list does
    not; python is the interpreter of the harness.

    Every finished run is on disk at once, in FILE.runs.jsonl beside the result.
    Exit code 1: an arm has no run that counts, or a check failed; 2: nothing
    was run; 130: stopped by Ctrl-C, the result is marked incomplete.
    """
    from benchmarks.edge_harness.grid import session

    return session.run(
        session.Options(
            spec_file=spec_file,
            out=out,
            passes=passes,
            metric=metric,
            cores=cores,
            control=control,
            check=check,
            resume=resume,
            allow_busy=allow_busy,
            timeout_s=timeout_s,
            settle_s=settle_s,
        ),
        _program,
    )


def _program(arm: Arm) -> Program:
    """The command line of ``arm``: its own, or its adapter's."""
    from benchmarks.edge_harness.adapters.registry import adapter

    if arm.unavailable is not None:
        return Program(unavailable=arm.unavailable)
    if arm.command is not None:
        command = ["/bin/sh", "-c", arm.command] if isinstance(arm.command, str) else list(arm.command)
        if not command or not command[0].strip():
            raise OmniError(f"arm {arm.tag}: command: expected a program, found none")
        return Program(command, dict(arm.env))
    found = adapter(arm.adapter or "")
    why = found.unavailable(arm)
    if why is not None:
        return Program(unavailable=why)
    return Program(found.command(arm), found.environment(arm) | arm.env, found.peer(arm))
