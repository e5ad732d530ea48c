"""The parts of an artifact's article, from the verdict down to the single run."""

from __future__ import annotations

from benchmarks.edge_harness.artifact.schema import Artifact, Comparison, Run
from benchmarks.edge_harness.metrics import Metric, metric
from benchmarks.edge_harness.report import tables
from benchmarks.edge_harness.report.figures import MISSING, confidence, figure, percent
from benchmarks.edge_harness.report.markup import Content, Markup, element, join
from benchmarks.edge_harness.report.memory_plot import memory_plots
from benchmarks.edge_harness.report.ratio_plot import ratio_plot
from benchmarks.edge_harness.report.record_view import record_view
from benchmarks.edge_harness.report.strip_plot import strip_plot
from benchmarks.edge_harness.report.tables import Cell, number, text
from benchmarks.edge_harness.statistics.noise_floor import NOTE
from benchmarks.edge_harness.statistics.summary import metric_names

_DIRECTIONS = {"higher": "↑ higher is better", "lower": "↓ lower is better", "neutral": "no direction"}
_ARM_COLOURS = 8


class View:
    """An artifact with what every section asks of it."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.declared = artifact.spec.declared_metrics() if artifact.spec else {}
        ran = [run.tag for run in artifact.runs]
        self.tags = list(dict.fromkeys([*(arm.tag for arm in artifact.arms), *ran]))
        self.colours = {tag: index % _ARM_COLOURS for index, tag in enumerate(self.tags)}
        names = metric_names(artifact.runs)
        named = artifact.metric
        self.names = sorted(names, key=lambda name: name != named)

    def metric(self, name: str) -> Metric:
        return metric(name, self.declared)

    def comparisons(self, name: str) -> list[Comparison]:
        return [one for one in self.artifact.comparisons if one.metric == name]


def section(heading: str, *content: Content, style: str = "") -> Markup:
    return element("section", element("h3", heading), *content, class_=style or None)


def headline(view: View) -> Markup | None:
    """The verdicts on the metric that the grid was made for."""
    named = view.artifact.metric
    found = view.comparisons(named) if named else []
    if not found:
        return None
    lines = [
        element("p", element("strong", _sentence(one)), _note(one), class_=f"verdict {_colour(view, one)}")
        for one in found
    ]
    what = view.metric(found[0].metric)
    return element(
        "section",
        element("h3", element("code", what.name), " ", element("small", _DIRECTIONS[what.direction])),
        lines,
        class_="headline",
    )


def overview(view: View) -> Markup | None:
    """Medians, metrics down and arms across."""
    rows_of = {(row.tag, row.metric): row for row in view.artifact.summaries}
    tags = [tag for tag in view.tags if any(row.tag == tag for row in view.artifact.summaries)]
    if not tags:
        return None
    rows = []
    for name in view.names:
        what = view.metric(name)
        verdicts = {one.a: one for one in view.comparisons(name)}
        arrow = {"higher": "↑", "lower": "↓"}.get(what.direction, "")
        unit = "" if what.unit == "1" else what.unit
        cells = [Cell([element("code", _breakable(name)), element("small", f"{unit} {arrow}")], name)]
        for tag in tags:
            row = rows_of.get((tag, name))
            if row is None:
                cells.append(number(None))
                continue
            shown = [element("span", figure(row.median), class_="figure")]
            shown.append(element("small", f"n={row.n}{_disturbed(row.marked_runs)}"))
            if tag in verdicts:
                shown.append(_short(verdicts[tag]))
            cells.append(number(row.median, shown))
        rows.append(cells)
    caption = "Medians by metric and arm"
    baseline = next((one.b for one in view.artifact.comparisons), None)
    explained = (
        element(
            "p",
            f"Medians of the runs that count. ↑ higher, ↓ lower is better. Ratios are to {baseline}, paired "
            "by pass, with intervals corrected for the number of comparisons.",
            class_="hint",
        )
        if baseline
        else None
    )
    return section("Medians", explained, tables.table(["metric", *tags], rows, caption))


def _breakable(name: str) -> Markup:
    """A long name may be broken after its underscores."""
    first, *rest = name.split("_")
    return join(first, [["_", element("wbr"), part] for part in rest])


def _short(one: Comparison) -> Markup:
    """The sentence without its names, which the table's head and the hint say."""
    if one.verdict == "not_comparable":
        return element("small", "not comparable", title=one.sentence, class_="not_comparable")
    style = "no_difference" if one.better is None else "better" if one.better == one.a else "worse"
    return element("small", _ratio(one), class_=f"figure {style}", title=one.sentence)


def distributions(view: View) -> Markup | None:
    cards = [_card(view, name) for name in view.names]
    if not cards:
        return None
    hint = (
        "Each dot is a run, the first pass on top; short ticks are what a program measured within a run; "
        "the line is the median. Hollow: disturbed. Faint: not counted (cold cache); an arrow lies beyond "
        "the axis. In the ratios each dot is a pair, and the band is the interval of their mean."
    )
    return section(
        "Every sample",
        element("p", hint, class_="hint"),
        element("div", cards, class_="cards"),
        style="samples",
    )


def _card(view: View, name: str) -> Markup:
    what, runs = view.metric(name), view.artifact.runs
    comparisons = view.comparisons(name)
    verdicts = [element("li", _sentence(one), _note(one), class_=_colour(view, one)) for one in comparisons]
    return element(
        "figure",
        element(
            "figcaption",
            element(
                "h4", element("code", name), element("small", f" {'' if what.unit == '1' else what.unit}")
            ),
            element("p", f"{what.meaning}; {_DIRECTIONS[what.direction]}", class_="hint"),
        ),
        strip_plot(runs, what, view.tags, view.colours),
        ratio_plot(runs, what, comparisons, view.colours),
        element("ul", verdicts, class_="verdicts") if verdicts else None,
        class_="card named" if name == view.artifact.metric else "card",
    )


def memory(view: View) -> Markup | None:
    plots = memory_plots(view.artifact.runs, view.tags, view.colours)
    if not plots:
        return None
    hint = "Sums over the process tree, sampled from outside. All plots have the same axes."
    return section(
        "Memory over time",
        element("p", hint, class_="hint"),
        element("div", plots, class_="cards"),
        style="memory-section",
    )


def checks(view: View) -> Markup | None:
    if not view.artifact.checks:
        return None
    rows = [
        [
            text(row.tag),
            text(row.metric),
            text(row.status.replace("_", " "), style=f"status {row.status}"),
            number(row.measured),
            number(row.expected),
            number(row.drift_pct, _signed(row.drift_pct)),
            number(row.band_pct, MISSING if row.band_pct is None else f"{row.band_pct:g}"),
            text(row.why, style="prose"),
        ]
        for row in view.artifact.checks
    ]
    headings = ["arm", "metric", "status", "median", "expected", "drift %", "band %", "why"]
    return section("Expectations", tables.table(headings, rows, "Medians against expectations"))


def noise(view: View) -> Markup | None:
    if not view.artifact.noise_floor:
        return None
    rows = [
        [
            text(floor.metric),
            number(floor.pairs),
            number(floor.ratio, element("span", f"{floor.ratio:.4f}", class_="figure")),
            number(floor.low, element("span", f"{floor.low:.4f}–{floor.high:.4f}", class_="figure")),
            number(floor.half_width_pct, element("span", f"±{floor.half_width_pct:.2f}", class_="figure")),
            number(floor.sd_pct, element("span", f"{floor.sd_pct:.2f}", class_="figure")),
        ]
        for floor in view.artifact.noise_floor
    ]
    headings = ["metric", "pairs", "ratio", "interval", "floor %", "sd of a pair %"]
    return section(
        "Noise floor (A/A)", element("p", NOTE, class_="hint"), tables.table(headings, rows, "Noise floor")
    )


def result(view: View) -> Markup | None:
    """A probe's own record."""
    if not view.artifact.result:
        return None
    return section("Result", record_view(view.artifact.result, as_figures=True))


def run_table(view: View) -> Markup | None:
    if not view.artifact.runs:
        return None
    rows = [_run_row(run) for run in view.artifact.runs]
    headings = ["arm", "pass", "place", "status", "cache", "wall s", "foreign", "steal", "why"]
    failures = [run for run in view.artifact.runs if run.stderr_tail and run.status != "ok"]
    tails = [
        element(
            "details",
            element("summary", f"What {run.tag} wrote in pass {run.pass_no} ({run.status})"),
            element("pre", run.stderr_tail),
        )
        for run in failures
    ]
    count = len(rows)
    bad = sum(run.status != "ok" for run in view.artifact.runs)
    summary = f"{count} {'run' if count == 1 else 'runs'}" + (f", {bad} of them not usable" if bad else "")
    table = tables.table(headings, rows, "Runs in the order in which they were made")
    return element("details", element("summary", summary), table, tails, class_="panel")


def _run_row(run: Run) -> list[Cell]:
    disturbance = run.disturbance
    what = run.reason or ""
    shares = (disturbance.foreign, disturbance.steal) if disturbance else (None, None)
    if disturbance and disturbance.marked:
        what = "; ".join(filter(None, (what, "disturbed", *disturbance.foreign_processes)))
    return [
        text(run.tag),
        number(run.pass_no),
        number(run.position),
        text(run.status, style=f"status {run.status}"),
        text("cold" if run.cold_cache else "warm"),
        number(run.wall_s),
        *(number(share, MISSING if share is None else percent(share)) for share in shares),
        text(what, style="prose"),
    ]


def figures_table(view: View) -> Markup | None:
    """Every summary in full."""
    if not view.artifact.summaries:
        return None
    rows = [
        [
            text(row.metric),
            text(row.tag),
            text(view.metric(row.metric).unit),
            number(row.n),
            number(row.median),
            number(row.mean),
            number(row.sd),
            number(row.minimum),
            number(row.maximum),
            number(row.marked_runs),
        ]
        for row in view.artifact.summaries
    ]
    headings = ["metric", "arm", "unit", "n", "median", "mean", "sd", "least", "most", "disturbed"]
    return element(
        "details",
        element("summary", f"{len(rows)} summaries: median, mean, sd, least, most"),
        tables.table(headings, rows, "Summaries"),
        class_="panel",
    )


def provenance(view: View) -> Markup:
    """Everything that the figures rest on."""
    artifact = view.artifact
    frame = artifact.model_dump(
        mode="json", include={"format", "kind", "created_utc", "command", "exit_code", "spec_sha256"}
    )
    recorded = artifact.provenance.model_dump(mode="json")
    parts = [("this file", frame), *recorded.items()]
    blocks: list[Content] = [
        join(element("h4", name.replace("_", " ")), record_view(content))
        for name, content in parts
        if content
    ]
    for arm in artifact.arms:
        blocks += [element("h4", f"arm {arm.tag}"), record_view(arm.model_dump(mode="json", exclude={"tag"}))]
    if artifact.spec:
        blocks += [element("h4", "spec"), record_view(artifact.spec.model_dump(mode="json"))]
    return element(
        "details",
        element("summary", "Provenance: machine, load, software, threads, models, kernels, commands"),
        element("div", blocks, class_="provenance"),
        class_="panel",
    )


def _sentence(one: Comparison) -> Markup:
    """With the names where the sentence lacks them; struck out with the other figures where it has one."""
    if one.verdict not in ("a_higher", "a_lower"):
        return element("span", f"{one.a} and {one.b}: {one.sentence}")
    # A ratio without its interval would be another claim: no line ends between them.
    ratio = element("span", _ratio(one), class_="whole")
    return element("span", f"{one.a} is ", ratio, f" of {one.b}", class_="figure")


def _ratio(one: Comparison) -> str:
    """What the sentence says between the names."""
    return one.sentence.removeprefix(f"{one.a} is ").removesuffix(f" of {one.b}")


def _note(one: Comparison) -> Content:
    if one.verdict == "not_comparable":
        return None
    level = "" if one.confidence is None else f"{confidence(one.confidence)} interval. "
    return element("small", f" {one.pairs} pairs, {level}{one.note}")


def _colour(view: View, one: Comparison) -> str:
    """Of the compared arm, as in the plots."""
    return f"arm-{view.colours.get(one.a, 0)} {one.verdict}"


def _disturbed(count: int) -> str:
    return f", {count} disturbed" if count else ""


def _signed(value: float | None) -> Content:
    return element("span", MISSING if value is None else f"{value:+.2f}", class_="figure")
