"""Artifacts as Markdown: verdicts, medians and where they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from benchmarks.edge_harness.artifact.schema import Artifact
from benchmarks.edge_harness.report.figures import MISSING, figure, sentence
from benchmarks.edge_harness.report.load import Source
from benchmarks.edge_harness.report.result_tables import plain, result_tables
from benchmarks.edge_harness.report.sections import View
from benchmarks.edge_harness.statistics.noise_floor import NOTE

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#])")


def markdown(sources: Sequence[Source], title: str) -> str:
    return "\n".join([f"# {escape(title)}", *(line for source in sources for line in _lines(source)), ""])


def escape(text: str) -> str:
    """Text that stays on its line and in its cell, and is no HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numeric_from: int) -> list[str]:
    """The cells are Markdown already. Columns from ``numeric_from`` on are right-aligned."""
    rule = ["---" if index < numeric_from else "---:" for index in range(len(headings))]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)]


def _lines(source: Source) -> Iterator[str]:
    artifact, retraction = source.artifact, source.retraction
    if source.problem is not None:
        yield f"\n> Not shown: {escape(source.name)}: {escape(source.problem)}\n"
        return
    yield f"\n## {escape(artifact.title if artifact and artifact.title else source.name)}\n"
    if retraction:
        replaced = f" Use {escape(retraction.superseded_by)} instead." if retraction.superseded_by else ""
        reason = escape(sentence(retraction.reason))
        yield f"> **Retracted on {escape(retraction.date)}:** {reason}{replaced}\n"
    if artifact is None:
        return
    if not artifact.complete:
        yield "> **Incomplete:** the measurement ended before its last run.\n"
    for note in artifact.notes:
        yield f"> {escape(note)}\n"
    for arm in artifact.arms:
        if arm.unavailable is not None:
            yield f"> Arm {escape(arm.tag)} did not run: {escape(arm.unavailable)}\n"
    yield _origin(source, artifact)
    view, struck = View(artifact), retraction is not None
    yield from _medians(view, struck)
    yield from _verdicts(view, struck)
    yield from _noise_floor(view, struck)
    yield from _checks(view, struck)
    yield from _result(artifact, struck)


def _origin(source: Source, artifact: Artifact) -> str:
    found = artifact.provenance
    cores = ", ".join(map(str, found.thread_set.cores))
    if found.thread_set.note:
        cores += f" ({escape(found.thread_set.note)})"
    commit = (found.software.git_commit or "no commit")[:10]
    dirty = " with uncommitted changes" if found.software.git_dirty else ""
    cpu = escape(found.machine.cpu_model or "unknown CPU")
    return (
        f"{escape(source.name)}: {artifact.kind} of {escape(artifact.created_utc)} on {cpu}, cores {cores}, "
        f"commit {escape(commit)}{dirty}"
    )


def _medians(view: View, struck: bool) -> Iterator[str]:
    rows_of = {(row.tag, row.metric): row for row in view.artifact.summaries}
    tags = [tag for tag in view.tags if any(key[0] == tag for key in rows_of)]
    rows = []
    for name in view.names:
        cells = [escape(name), escape(view.metric(name).unit)]
        for tag in tags:
            row = rows_of.get((tag, name))
            sd = "" if row is None or row.sd is None else f" ± {figure(row.sd)}"
            cells.append(
                MISSING if row is None else f"{_struck(figure(row.median) + sd, struck)} (n={row.n})"
            )
        rows.append(cells)
    if tags:
        yield "\nMedian ± standard deviation\n"
        yield from table(["metric", "unit", *map(escape, tags)], rows, 2)


def _verdicts(view: View, struck: bool) -> Iterator[str]:
    rows = [
        [
            escape(one.metric),
            escape(one.a),
            escape(one.b),
            _struck(escape(one.sentence), struck and one.ratio is not None),
            str(one.pairs),
            escape(one.note),
        ]
        for one in view.artifact.comparisons
    ]
    if rows:
        yield ""
        yield from table(["metric", "arm", "against", "verdict", "pairs", "note"], rows, 6)


def _noise_floor(view: View, struck: bool) -> Iterator[str]:
    rows = [
        [
            escape(floor.metric),
            _struck(f"±{floor.half_width_pct:.2f} %", struck),
            _struck(f"{floor.ratio:.4f} ({floor.low:.4f}–{floor.high:.4f})", struck),
            str(floor.pairs),
        ]
        for floor in view.artifact.noise_floor
    ]
    if rows:
        yield f"\nNoise floor. {NOTE}\n"
        yield from table(["metric", "floor", "ratio", "pairs"], rows, 1)


def _checks(view: View, struck: bool) -> Iterator[str]:
    rows = [
        [
            escape(row.tag),
            escape(row.metric),
            row.status.replace("_", " "),
            _struck(figure(row.measured), struck and row.measured is not None),
            figure(row.expected),
            MISSING if row.drift_pct is None else _struck(f"{row.drift_pct:+.2f}", struck),
            figure(row.band_pct),
        ]
        for row in view.artifact.checks
    ]
    if rows:
        yield ""
        yield from table(["arm", "metric", "status", "median", "expected", "drift %", "band %"], rows, 3)


def _result(artifact: Artifact, struck: bool) -> Iterator[str]:
    """A probe's own record: what is a table there."""
    for found in result_tables(artifact.result):
        yield f"\n{escape(found.name)}\n"
        numeric = [all(_is_figure(row[i]) for row in found.rows) for i in range(len(found.headings))]
        rows = [
            [_struck(escape(plain(cell)), struck and _is_figure(cell) and cell is not None) for cell in row]
            for row in found.rows
        ]
        first = next((i for i in range(len(numeric)) if all(numeric[i:])), len(numeric))
        yield from table([escape(heading) for heading in found.headings], rows, first)


def _is_figure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _struck(text: str, struck: bool) -> str:
    return f"~~{text}~~" if struck else text
