"""Every figure of every run, one a row: what other tools need to compute their own statistics."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from benchmarks.edge_harness.artifact.schema import Run
from benchmarks.edge_harness.report.load import Source
from benchmarks.edge_harness.report.sections import View
from benchmarks.edge_harness.statistics.paired import counts, is_marked

COLUMNS = (
    "file", "title", "kind", "retracted", "complete", "tag", "pass_no", "position", "cold_cache", "status",
    "reason", "disturbed", "metric", "unit", "direction", "counted", "value",
)  # fmt: skip


def csv_rows(sources: Sequence[Source]) -> str:
    """A run without figures has one row, without a metric."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for source in sources:
        writer.writerows([_cell(value) for value in row] for row in _rows(source))
    return text.getvalue()


def _rows(source: Source) -> Iterator[list[object]]:
    artifact = source.artifact
    if artifact is None:
        return
    view = View(artifact)
    for run in artifact.runs:
        frame = [source.name, artifact.title, artifact.kind, source.retraction is not None, artifact.complete]
        frame += _of_run(run)
        if not run.metrics:
            yield [*frame, "", "", "", False, ""]
        for name, value in run.metrics.items():
            what = view.metric(name)
            yield [*frame, name, what.unit, what.direction, counts(run, what), value]


def _of_run(run: Run) -> list[object]:
    return [
        run.tag, run.pass_no, run.position, run.cold_cache, run.status, run.reason or "", is_marked(run),
    ]  # fmt: skip


def _cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula is quoted as it quotes texts itself."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
