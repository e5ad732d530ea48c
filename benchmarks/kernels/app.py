"""The commands of ``python -m benchmarks.kernels``."""

from __future__ import annotations

import typer

from benchmarks.kernels import gemm, gemv

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Our kernels against the machine's read ceiling (gemv) and against stock vLLM's (gemm).",
)
app.command("gemv")(gemv.main)
app.command("gemm")(gemm.main)
