"""Memory over time, a plot for each arm, all on the same axes; every run is a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.edge_harness.artifact.schema import MemoryPoint, Phase, Run
from benchmarks.edge_harness.report.figures import figure
from benchmarks.edge_harness.report.markup import Markup, element
from benchmarks.edge_harness.report.scale import Scale, linear

_MOST_BUCKETS = 150
_HEIGHT_PX, _AXIS_PX = 200, 20
# Above the highest line, for the numbers of the phases.
_TOP_PX = 18
# Of the inner drawing, which is stretched to whatever room there is.
_WIDTH = 1000


def memory_plots(runs: Sequence[Run], tags: Sequence[str], colours: dict[str, int]) -> list[Markup]:
    """One for each arm with memory samples."""
    sampled = [run for run in runs if run.memory]
    if not sampled:
        return []
    time = linear([point.t_s for run in sampled for point in run.memory], from_zero=True)
    levels = [max(point.rss_anon_mb, point.rss_file_mb) for run in sampled for point in run.memory]
    megabytes = linear(levels, from_zero=True, ticks=4)
    return [
        _plot(tag, mine, time, megabytes, colours[tag])
        for tag in tags
        if (mine := [run for run in sampled if run.tag == tag])
    ]


def thin_out(
    points: Sequence[MemoryPoint], value: Callable[[MemoryPoint], float]
) -> list[tuple[float, float]]:
    """At most two points a bucket, its lowest and its highest in their order, so that no peak is lost."""
    size = max(1, -(-len(points) // _MOST_BUCKETS))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        bucket = [(point.t_s, value(point)) for point in points[start : start + size]]
        ends = {min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _plot(tag: str, runs: Sequence[Run], time: Scale, megabytes: Scale, colour: int) -> Markup:
    shown = next((run for run in reversed(runs) if run.status == "ok" and not run.cold_cache), runs[-1])
    lines = [
        _line(
            run,
            "cold" if run.cold_cache else "warm",
            f"RssAnon, pass {run.pass_no}",
            lambda point: point.rss_anon_mb,
            time,
            megabytes,
        )
        for run in runs
    ]
    lines.append(
        _line(
            shown, "file", f"RssFile, pass {shown.pass_no}", lambda point: point.rss_file_mb, time, megabytes
        )
    )
    inner = element(
        "svg",
        lines,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT_PX}",
        preserveAspectRatio="none",
        width="100%",
        height=_HEIGHT_PX,
        overflow="visible",
    )
    drawing = element(
        "svg",
        [_level(mark, megabytes) for mark in megabytes.ticks],
        [_moment(mark, time) for mark in time.ticks],
        inner,
        [_marker(index, phase, time) for index, phase in enumerate(shown.phases, 1)],
        width="100%",
        height=_HEIGHT_PX + _AXIS_PX,
        role="img",
        aria_label=f"memory of {tag} over time",
    )
    cold = any(run.cold_cache for run in runs)
    legend = [element("li", element("i", class_="key warm"), f"RssAnon, {_warm_runs(runs)}")]
    if cold:
        legend.append(element("li", element("i", class_="key cold"), "RssAnon, cold cache"))
    legend.append(element("li", element("i", class_="key file"), f"RssFile, pass {shown.pass_no}"))
    return element(
        "figure",
        element("figcaption", element("strong", tag), element("ul", legend, class_="legend")),
        element("div", drawing, class_="memory"),
        _phase_list(shown.phases, shown.pass_no),
        class_=f"arm-{colour}",
    )


def _warm_runs(runs: Sequence[Run]) -> str:
    count = sum(not run.cold_cache for run in runs)
    return f"{count} run" if count == 1 else f"{count} runs"


def _line(
    run: Run,
    kind: str,
    title: str,
    value: Callable[[MemoryPoint], float],
    time: Scale,
    megabytes: Scale,
) -> Markup:
    places = " ".join(
        f"{_WIDTH * time.share(t):.1f},{_y(mb, megabytes):.1f}" for t, mb in thin_out(run.memory, value)
    )
    return element("polyline", element("title", title), points=places, class_=f"line {kind}")


def _y(value: float, megabytes: Scale) -> float:
    return _TOP_PX + (_HEIGHT_PX - _TOP_PX) * (1 - megabytes.share(value))


def _level(mark: float, megabytes: Scale) -> Markup:
    y = round(_y(mark, megabytes), 1)
    line = element("line", x1=0, x2="100%", y1=y, y2=y, class_="grid-line")
    # At zero the label would sit on the axis below.
    label = element("text", f"{mark:,.12g} MB", x=2, y=y - 3) if mark > 0 else None
    return element("g", line, label)


def _moment(mark: float, time: Scale) -> Markup | None:
    if not 0.02 < time.share(mark) < 0.98:
        return None
    return element(
        "text", f"{mark:g} s", x=time.percent(mark), y=_HEIGHT_PX + 14, text_anchor="middle", class_="moment"
    )


def _marker(index: int, phase: Phase, time: Scale) -> Markup:
    x = time.percent(min(phase.t_s, time.high))
    return element(
        "g",
        element("title", phase.name),
        element("line", x1=x, x2=x, y1=14, y2=_HEIGHT_PX, class_="phase"),
        element("circle", cx=x, cy=8, r=7, class_="phase-dot"),
        element("text", index, x=x, y=11.5, text_anchor="middle", class_="phase-number"),
    )


def _phase_list(phases: Sequence[Phase], pass_no: int) -> Markup | None:
    if not phases:
        return None
    items = []
    for phase in phases:
        figures = [
            f"{name} {figure(value)} MB"
            for name, value in (("RssAnon", phase.rss_anon_mb), ("Pss_Anon", phase.pss_anon_mb))
            if value is not None
        ]
        shown = element("span", ", ".join(figures), class_="figure") if figures else None
        items.append(element("li", f"{phase.name} ({phase.t_s:.1f} s) ", shown))
    return element("ol", items, class_="phases", aria_label=f"phases of pass {pass_no}")
