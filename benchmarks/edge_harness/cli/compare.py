"""``compare``: two result files of the same workload on the same machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from benchmarks.edge_harness.statistics.across import Row


def run(
    a: Annotated[Path, typer.Argument(metavar="A", help="A result file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The one that it is compared with.")],
    metric: Annotated[
        str | None, typer.Option(help="The metric that this is about [default: that of A]; others follow.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Compare two result files of one workload: the same machine, cores, spec and model, other software.

    Files share no passes, so nothing is paired: the intervals are wider than those of one grid with both
    arms, and what changed between the two sessions stays in the ratio. To be sure, run both arms in one grid.

    compare results/before.json results/after.json --metric tg_tps
    """
    import json

    from benchmarks.edge_harness.artifact.file import read
    from benchmarks.edge_harness.metrics import METRICS
    from benchmarks.edge_harness.statistics.across import compare_artifacts, refusal
    from vllm_omni.errors import OmniError

    artifacts = read(a), read(b)
    if a.samefile(b):
        raise OmniError(f"{b}: expected another result file than A")
    if why := refusal(*artifacts):
        raise OmniError(f"not comparable because {why} (A is {a}, B is {b})")
    rows = compare_artifacts(*artifacts, "A", "B", metric)
    found = sorted({row.metric for row in rows})
    if metric is not None and metric not in found:
        kind = "metric of both files" if metric in METRICS else "metric"
        raise OmniError(
            f"--metric: expected a {kind} ({', '.join(found) or 'there is none'}), found {metric}"
        )
    if as_json:
        print(json.dumps({"a": str(a), "b": str(b), "rows": [_record(row) for row in rows]}, indent=1))
    else:
        _print(a, b, rows)
    return 0


def _record(row: Row) -> dict[str, object]:
    return {
        "tag": row.tag,
        "metric": row.metric,
        "unit": row.unit,
        "n_a": row.n_a,
        "n_b": row.n_b,
        "median_a": row.median_a,
        "median_b": row.median_b,
        **row.comparison.model_dump(mode="json", exclude={"metric", "pairs"}),
    }


def _print(a: Path, b: Path, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from benchmarks.edge_harness.report.figures import figure
    from benchmarks.edge_harness.statistics.across import UNPAIRED_NOTE

    console = Console(highlight=False, markup=False)
    table = Table(title=Text(f"A: {a}\nB: {b}"), title_justify="left", box=None, pad_edge=False)
    for heading, justify in (("arm", "left"), ("metric", "left"), ("A", "right"), ("B", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    table.add_column("verdict", overflow="fold")
    for row in rows:
        unit = "" if row.unit in ("", "1") else f" {row.unit}"
        table.add_row(
            Text(row.tag),
            Text(row.metric),
            *(
                Text("–" if median is None else f"{figure(median)}{unit} (n={n})")
                for median, n in ((row.median_a, row.n_a), (row.median_b, row.n_b))
            ),
            Text(row.comparison.sentence, style="bold green" if row.comparison.better else ""),
        )
    console.print(table)
    console.print(UNPAIRED_NOTE)
