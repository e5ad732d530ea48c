"""The ratio of every pair, with the interval of their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.edge_harness.artifact.schema import Comparison, Run
from benchmarks.edge_harness.metrics import Metric
from benchmarks.edge_harness.report.markup import Markup, element
from benchmarks.edge_harness.report.scale import Scale, ratios
from benchmarks.edge_harness.report.strip_plot import axis, grid_lines, pass_place, row_height
from benchmarks.edge_harness.statistics.paired import Pair, pairs


def ratio_plot(
    runs: Sequence[Run], metric: Metric, comparisons: Sequence[Comparison], colours: dict[str, int]
) -> Markup:
    """A row for each comparison that has a pair of positive figures; empty where none has."""
    rows = [(comparison, _pairs(runs, metric, comparison)) for comparison in comparisons]
    rows = [(comparison, found) for comparison, found in rows if found]
    if not rows:
        return Markup("")
    shown = [math.exp(pair.log_ratio) for _, found in rows for pair in found]
    shown += [bound for comparison, _ in rows for bound in (comparison.low, comparison.high) if bound]
    scale = ratios(shown)
    made = [
        element(
            "div",
            element("div", f"{comparison.a} / {comparison.b}", class_="plot-label"),
            _row(comparison, found, scale, colours[comparison.a]),
            class_="plot-row",
        )
        for comparison, found in rows
    ]
    return element("div", made, axis(scale), class_="plot ratios", role="group", aria_label="paired ratios")


def _pairs(runs: Sequence[Run], metric: Metric, comparison: Comparison) -> list[Pair]:
    try:
        found = pairs(runs, metric, comparison.a, comparison.b)
    except ValueError:
        return []
    return [pair for pair in found if pair.a > 0 and pair.b > 0]


def _row(comparison: Comparison, found: Sequence[Pair], scale: Scale, colour: int) -> Markup:
    passes = [pair.pass_no for pair in found]
    height = row_height(len(passes))
    marks = []
    for pair in found:
        ratio = math.exp(pair.log_ratio)
        title = f"pass {pair.pass_no}: {ratio:.4g}×{', disturbed' if pair.marked else ''}"
        dot = element(
            "circle",
            element("title", title),
            cx=scale.percent(ratio),
            cy=round(pass_place(pair.pass_no, passes, height), 1),
            r=3.5,
        )
        marks.append(element("g", dot, class_="run disturbed" if pair.marked else "run"))
    interval: list[Markup] = []
    if comparison.ratio and comparison.low and comparison.high:
        low, middle = map(scale.percent, (comparison.low, comparison.ratio))
        share = scale.share(comparison.high) - scale.share(comparison.low)
        band = element("rect", x=low, y=1, width=f"{100 * share:.2f}%", height=height - 2, class_="interval")
        line = element("line", x1=middle, x2=middle, y1=1, y2=height - 1, class_="median")
        interval = [element("g", element("title", comparison.sentence), band, line)]
    one = scale.percent(1.0)
    return element(
        "svg",
        grid_lines(scale, height),
        element("line", x1=one, x2=one, y1=0, y2=height, class_="one"),
        interval,
        marks,
        width="100%",
        height=height,
        role="img",
        aria_label=comparison.sentence,
        class_=f"arm-{colour}",
    )
