"""What a person sees of a grid, on standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from benchmarks.edge_harness.artifact.schema import Artifact, Comparison, MetricSummary, Run
from benchmarks.edge_harness.grid.journal import Entry
from benchmarks.edge_harness.grid.order import Slot
from benchmarks.edge_harness.grid.runner import Progress
from benchmarks.edge_harness.metrics import metric
from benchmarks.edge_harness.statistics.noise_floor import is_suspicious

# What watching may take of a core. Programs of a few milliseconds exceed it: every start is watched closely.
MONITOR_SHARE = 0.01

_STYLES = {"ok": "green", "failed": "red", "invalid": "yellow"}


class TerminalProgress(Progress):
    """A line for every finished run; where there is a terminal, a bar with the run in flight below."""

    def __init__(self, console: Console, metric_name: str, passes: int, total: int, done: int) -> None:
        self._console, self._metric, self._passes = console, metric_name, passes
        self._began, self._done_before = time.monotonic(), done
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} runs"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("", total=total, completed=done, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def starting(self, slot: Slot, done: int, total: int) -> None:
        self._bar.update(self._task, description=f"pass {slot.pass_no}/{self._passes} {slot.tag}")

    def finished(self, entry: Entry, done: int, total: int) -> None:
        run = entry.run
        made = done - self._done_before
        left_s = (time.monotonic() - self._began) / made * (total - done)
        self._bar.update(self._task, completed=done, left=f"about {_duration(left_s)} left" if left_s else "")
        line = Text(f"[{done}/{total}] pass {run.pass_no}/{self._passes} {run.tag}: ")
        line.append(run.status, _STYLES[run.status])
        line.append(f", {_what(run, self._metric)}")
        self._console.print(line, soft_wrap=True)


def print_summary(console: Console, artifact: Artifact) -> None:
    """Notes first, then the grid's metric by arm, what may be said of it, the noise floor, the checks."""
    for note in artifact.notes:
        console.print(Text(f"note: {note}", "yellow"), soft_wrap=True)
    spec = artifact.spec
    assert spec is not None
    assert artifact.metric is not None
    what = metric(artifact.metric, spec.declared_metrics())
    better = {"higher": ", higher is better", "lower": ", lower is better", "neutral": ""}[what.direction]
    table = Table(title=f"{what.name}{f' in {what.unit}' if what.unit else ''}{better}", title_justify="left")
    table.add_column("arm", overflow="fold")
    for column in ("median", "sd", "least", "most", "runs", "disturbed"):
        table.add_column(column, justify="right")
    rows = {row.tag: row for row in artifact.summaries if row.metric == artifact.metric}
    for arm in artifact.arms:
        made = sum(run.tag == arm.tag for run in artifact.runs)
        table.add_row(arm.tag, *_cells(rows.get(arm.tag), made, arm.unavailable))
    console.print(table)
    for row in artifact.comparisons:
        if row.metric == artifact.metric:
            console.print(Text(verdict_line(row)), soft_wrap=True)
    for floor in artifact.noise_floor:
        if floor.metric == artifact.metric:
            console.print(
                f"noise floor of {floor.metric}: ±{floor.half_width_pct:.2f} % between two identical arms "
                f"(ratio {floor.ratio:.4f}, {floor.pairs} pairs)",
                soft_wrap=True,
            )
            if is_suspicious(floor):
                console.print("warning: the two identical arms differ by more than chance", style="yellow")
    for check in artifact.checks:
        if check.status != "unlisted":
            style = "red" if check.status in ("regression", "missing", "not_gated") else None
            console.print(Text(f"check {check.tag} {check.metric}: {check.status}: {check.why}", style or ""))
    cost = artifact.provenance.monitor
    if cost is not None:
        console.print(
            f"watching took {100 * cost.share_of_a_core:.2f} % of a core ({cost.samples} samples)",
            style="dim" if cost.share_of_a_core <= MONITOR_SHARE else "yellow",
        )


def verdict_line(row: Comparison) -> str:
    """The sentence with the arms that it is of."""
    return (
        row.sentence if row.sentence.startswith(f"{row.a} ") else f"{row.a} against {row.b}: {row.sentence}"
    )


def _cells(row: MetricSummary | None, made: int, unavailable: str | None) -> list[str]:
    if unavailable is not None:
        return ["not run", "", "", "", "", ""]
    if row is None:
        return ["none", "", "", "", f"0 of {made}", ""]
    return [
        _number(row.median),
        "" if row.sd is None else _number(row.sd),
        _number(row.minimum),
        _number(row.maximum),
        f"{row.n} of {made}",
        str(row.marked_runs) if row.marked_runs else "",
    ]


def _what(run: Run, metric_name: str) -> str:
    if run.reason is not None:
        return run.reason
    parts = [f"{metric_name} {_number(run.metrics[metric_name])} in {_duration(run.wall_s)}"]
    if run.cold_cache:
        parts.append("cold cache")
    if run.disturbance is not None and run.disturbance.marked:
        others = ", ".join(run.disturbance.foreign_processes[:3])
        parts.append(f"disturbed{f' by {others}' if others else ''}")
    return ", ".join(parts)


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
