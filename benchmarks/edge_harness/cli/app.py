"""``vllm-omni bench`` and ``bench_harness.py``: one function per command, each in its own file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import typer

from vllm_omni.cli.main import run_app

# In the order of the help. The first is what `bench_harness.py --spec …` runs.
COMMANDS = (
    "run",
    "memory-probe",
    "decode",
    "prefill",
    "startup",
    "profile",
    "bandwidth",
    "ledger",
    "fidelity",
    "compare",
    "report",
    "verify",
    "retract",
)
_HELP_FLAGS = {"-h", "--help"}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Every number as an interleaved A/B with provenance.

A grid of arms, fresh pinned processes in rotated and mirrored order (`run` may be left out):

    bench --spec arms.json --passes 7 --metric tg_tps --cores 0-1 --out summary.json

One engine, or any process:

    bench memory-probe --model smollm2
    bench memory-probe --pid 4242 --seconds 10

What came out:

    bench report results/ --out report.html
    bench verify results/
""",
)
for _name in COMMANDS:
    _module = importlib.import_module(f"benchmarks.edge_harness.cli.{_name.replace('-', '_')}")
    app.command(_name)(_module.run)


def with_command(args: Sequence[str]) -> list[str]:
    """``--spec …`` alone means ``run --spec …``."""
    if args and args[0].startswith("-") and args[0] not in _HELP_FLAGS:
        return ["run", *args]
    return list(args) or ["--help"]


def main(args: Sequence[str] | None = None, name: str = "bench_harness.py") -> int:
    """Run one command line; the exit code. Whatever the user can put right is one line on standard error."""
    return run_app(app, with_command(sys.argv[1:] if args is None else args), name)
