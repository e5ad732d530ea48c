"""Every figure of a metric, an arm a row: the first pass on top, so that a drift is seen as a slant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.edge_harness.artifact.schema import Run
from benchmarks.edge_harness.metrics import Metric
from benchmarks.edge_harness.report.figures import figure
from benchmarks.edge_harness.report.markup import Markup, element
from benchmarks.edge_harness.report.scale import Scale, linear
from benchmarks.edge_harness.statistics.paired import counts, is_marked

_PASS_PX, _EDGE_PX, _AXIS_PX = 7, 7, 20
_TALLEST_PX = 120


def strip_plot(runs: Sequence[Run], metric: Metric, tags: Sequence[str], colours: dict[str, int]) -> Markup:
    """Empty where no run has a figure."""
    mine = [run for run in runs if _value(run, metric) is not None]
    if not mine:
        return Markup("")
    # A cold start takes several times as long: on its axis nothing else could be told apart.
    shown = [run for run in mine if counts(run, metric)] or mine
    values = [_value(run, metric) or 0.0 for run in shown]
    scale = linear([*values, *(sample for run in shown for sample in raw_samples(run, metric.name))])
    passes = sorted({run.pass_no for run in mine})
    rows = [
        element(
            "div",
            element("div", tag, class_="plot-label"),
            _row([run for run in mine if run.tag == tag], metric, scale, passes, colours[tag]),
            class_="plot-row",
        )
        for tag in tags
        if any(run.tag == tag for run in mine)
    ]
    return element(
        "div", rows, axis(scale), class_="plot strips", role="group", aria_label=f"samples of {metric.name}"
    )


def raw_samples(run: Run, name: str) -> list[float]:
    """What a program measured within one run, where it says so."""
    reported = run.reported.get("samples")
    found = reported.get(name) if isinstance(reported, dict) else None
    if not isinstance(found, list):
        return []
    return [float(x) for x in found if _is_number(x)]


def axis(scale: Scale) -> Markup:
    """The labels under a plot's rows."""
    marks = [
        element(
            "text",
            f"{mark:g}×" if scale.logarithmic else f"{mark:,.12g}",
            x=scale.percent(mark),
            y=14,
            text_anchor="middle",
        )
        for mark in scale.ticks
        # A label at the very edge would be cut off.
        if 0.02 < scale.share(mark) < 0.98
    ]
    drawing = element("svg", marks, width="100%", height=_AXIS_PX, class_="axis", aria_hidden="true")
    return element("div", element("div", class_="plot-label"), drawing, class_="plot-row")


def grid_lines(scale: Scale, height: float) -> list[Markup]:
    return [
        element("line", x1=scale.percent(x), x2=scale.percent(x), y1=0, y2=height, class_="grid-line")
        for x in scale.ticks
    ]


def row_height(passes: int) -> int:
    return min(_TALLEST_PX, max(28, 2 * _EDGE_PX + _PASS_PX * max(0, passes - 1)))


def pass_place(pass_no: int, passes: Sequence[int], height: float) -> float:
    if len(passes) < 2:
        return height / 2
    return _EDGE_PX + (height - 2 * _EDGE_PX) * passes.index(pass_no) / (len(passes) - 1)


def _row(runs: Sequence[Run], metric: Metric, scale: Scale, passes: Sequence[int], colour: int) -> Markup:
    height = row_height(len(passes))
    marks = []
    counting = []
    for run in runs:
        value, y = _value(run, metric) or 0.0, pass_place(run.pass_no, passes, height)
        for sample in raw_samples(run, metric.name):
            if not 0 <= scale.share(sample) <= 1:
                continue
            x = scale.percent(sample)
            marks.append(element("line", x1=x, x2=x, y1=y - 2.5, y2=y + 2.5, class_="raw"))
        in_statistics = counts(run, metric)
        if in_statistics:
            counting.append(value)
        kinds = ["run", "disturbed" if is_marked(run) else "", "" if in_statistics else "left-out"]
        why = f"pass {run.pass_no}: {figure(value)} {metric.unit}"
        why += ", disturbed" if is_marked(run) else ""
        why += "" if in_statistics else f", not counted ({'cold cache' if run.cold_cache else run.status})"
        marks.append(element("g", _mark(value, y, why, scale), class_=" ".join(filter(None, kinds))))
    middle = []
    if counting:
        median = statistics.median(counting)
        x = scale.percent(median)
        line = element("line", x1=x, x2=x, y1=1, y2=height - 1, class_="median")
        middle = [element("g", element("title", f"median {figure(median)} {metric.unit}"), line)]
    tag = runs[0].tag
    return element(
        "svg",
        grid_lines(scale, height),
        middle,
        marks,
        width="100%",
        height=height,
        role="img",
        aria_label=f"{tag}: {len(runs)} runs",
        class_=f"arm-{colour}",
    )


def _mark(value: float, y: float, title: str, scale: Scale) -> Markup:
    if 0 <= scale.share(value) <= 1:
        return element("circle", element("title", title), cx=scale.percent(value), cy=round(y, 1), r=4)
    beyond = scale.share(value) > 1
    return element(
        "text",
        element("title", title),
        f"{figure(value)} ▸" if beyond else f"◂ {figure(value)}",
        x="100%" if beyond else "0%",
        y=round(y + 4, 1),
        text_anchor="end" if beyond else "start",
        class_="beyond",
    )


def _value(run: Run, metric: Metric) -> float | None:
    value = run.metrics.get(metric.name)
    return value if value is not None and math.isfinite(value) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
