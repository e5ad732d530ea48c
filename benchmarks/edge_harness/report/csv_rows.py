"""Every figure of every run, one a row: what other tools need to compute their own statistics.

A record without runs (a kernel benchmark's) gives the numbers of its tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.edge_harness.artifact.schema import Run
from benchmarks.edge_harness.report.load import Source
from benchmarks.edge_harness.report.result_tables import result_tables
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
    of_file = [source.name, artifact.title, artifact.kind, source.retraction is not None, artifact.complete]
    if not artifact.runs:
        yield from ([*of_file, *rest] for rest in _of_record(artifact.result))
    for run in artifact.runs:
        frame = of_file + _of_run(run)
        if not run.metrics:
            yield [*frame, "", "", "", False, ""]
        for name, value in run.metrics.items():
            what = view.metric(name)
            yield [*frame, name, what.unit, what.direction, counts(run, what), value]


def _of_record(result: Mapping[str, Any] | None) -> Iterator[list[object]]:
    """The numbers of a record that has no runs, each with its place in it for a tag and its line for a
    pass."""
    for found in result_tables(result):
        for line, row in enumerate(found.rows, 1):
            # Two columns, name and value, are a record written down the page.
            named = found.headings == ["name", "value"]
            for heading, value in zip(found.headings, row, strict=True):
                if isinstance(value, int | float):
                    name = str(row[0]) if named else heading
                    run = [found.name, line, line, False, "", "", False]
                    yield [*run, name, "", "neutral", False, value]


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
