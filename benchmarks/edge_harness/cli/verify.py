"""``verify``: are these result files valid, or retracted?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE|DIR]...", help="Default: every tracked result of this repository."),
    ] = None,
) -> int:
    """Check that every result file is valid or retracted.

    verify
    verify benchmarks/edge_harness/results

    Of a grid, medians, sentences and noise floor are computed anew from its
    runs, and must be those on file.
    """
    from rich.console import Console

    from benchmarks.edge_harness.artifact.verification import result_files, tracked_results, verify
    from benchmarks.edge_harness.grid.recomputation import contradictions
    from benchmarks.edge_harness.provenance.scrub import REPOSITORY

    files = result_files(places) if places else tracked_results(REPOSITORY)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    verdicts = list(verify(files, contradictions))
    for verdict in verdicts:
        style = {"valid": "green", "retracted": "yellow", "invalid": "red"}[verdict.state]
        shown = (
            verdict.path.relative_to(REPOSITORY) if verdict.path.is_relative_to(REPOSITORY) else verdict.path
        )
        console.print(f"{verdict.state:9} {shown}: {verdict.why}", style=style)
    invalid = sum(verdict.state == "invalid" for verdict in verdicts)
    console.print(f"{len(verdicts)} files, {invalid} invalid")
    return 1 if invalid else 0
