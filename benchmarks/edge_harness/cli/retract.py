"""``retract``: take a result back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The result to take back.")],
    reason: Annotated[str, typer.Option(help="Why its figures must not be used.")],
    superseded_by: Annotated[
        str | None, typer.Option(metavar="FILE", help="The result that replaces it, beside it or from here.")
    ] = None,
) -> int:
    """Take a result back. The file stays, with the reason, the date and what replaces it.

    retract results/old.json --reason "the head ran in bf16" --superseded-by new.json
    """
    from datetime import UTC, datetime

    from benchmarks.edge_harness.artifact import retraction

    today = datetime.now(UTC).date().isoformat()
    retraction.retract(file, reason=reason, superseded_by=superseded_by, date=today)
    print(f"{file}: retracted")
    return 0
