"""One self-contained page of all artifacts: style and script are in it, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from string import Template

from benchmarks.edge_harness.artifact.schema import Artifact, Retraction
from benchmarks.edge_harness.report import sections, tables
from benchmarks.edge_harness.report.figures import sentence
from benchmarks.edge_harness.report.load import Source
from benchmarks.edge_harness.report.markup import Content, Markup, element, join

_HERE = Path(__file__).resolve().parent


def page(sources: Sequence[Source], title: str) -> str:
    """The whole document."""
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    shown = [source for source in sources if source.problem is None]
    articles = [_article(source, f"a{index}") for index, source in enumerate(shown, 1)]
    index = _index(shown) if len(shown) > 1 else None
    return Template((_HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=join(title),
        style=style,
        script=script,
        # A browser runs this script and this style alone, and loads nothing, whatever an artifact says.
        style_digest=_digest(style),
        script_digest=_digest(script),
        content=join(_passed_over(sources), index, articles),
    )


def _passed_over(sources: Sequence[Source]) -> list[Markup]:
    return [
        element("p", f"Not shown: {source.name}: {source.problem}", class_="notice")
        for source in sources
        if source.problem is not None
    ]


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _index(sources: Sequence[Source]) -> Markup:
    rows = []
    for number, source in enumerate(sources, 1):
        artifact = source.artifact
        title = artifact.title if artifact else "unreadable"
        rows.append(
            [
                tables.Cell(element("a", title or source.name, href=f"#a{number}"), title or source.name),
                tables.text(source.name),
                tables.text(artifact.kind if artifact else ""),
                tables.text(artifact.created_utc if artifact else "", style="whole"),
                tables.text(artifact.provenance.machine.cpu_model or "" if artifact else ""),
                tables.text(_state(source), style="status " + ("retracted" if source.retraction else "")),
            ]
        )
    headings = ["title", "file", "kind", "made", "machine", "state"]
    return element("nav", tables.table(headings, rows, "Result files"), aria_label="Result files")


def _state(source: Source) -> str:
    if source.retraction:
        return "retracted"
    return "complete" if source.artifact and source.artifact.complete else "incomplete"


def _article(source: Source, anchor: str) -> Markup:
    artifact = source.artifact
    style = "retracted" if source.retraction else None
    if artifact is None:
        heading = element("header", element("h2", source.name))
        return element("article", heading, _retraction(source.retraction), id=anchor, class_=style)
    view = sections.View(artifact)
    return element(
        "article",
        _header(source, artifact),
        _retraction(source.retraction),
        _notes(artifact),
        sections.headline(view),
        sections.overview(view),
        sections.result(view),
        sections.checks(view),
        sections.noise(view),
        sections.distributions(view),
        sections.memory(view),
        sections.figures_table(view),
        sections.run_table(view),
        sections.provenance(view),
        id=anchor,
        class_=style,
    )


def _header(source: Source, artifact: Artifact) -> Markup:
    found, software = artifact.provenance, artifact.provenance.software
    commit = (software.git_commit or "no commit")[:10] + (
        ", uncommitted changes" if software.git_dirty else ""
    )
    cores = found.thread_set.cores
    facts = [
        artifact.kind,
        found.machine.cpu_model or "unknown CPU",
        f"{len(cores)} {'core' if len(cores) == 1 else 'cores'}",
        artifact.created_utc,
        commit,
        source.name,
    ]
    return element(
        "header",
        element("h2", artifact.title or source.name),
        element("ul", [element("li", fact) for fact in facts], class_="facts"),
    )


def _retraction(retraction: Retraction | None) -> Markup | None:
    if retraction is None:
        return None
    superseded: Content = (
        [" Use ", element("code", retraction.superseded_by), " instead."]
        if retraction.superseded_by
        else None
    )
    return element(
        "p",
        element("strong", f"Retracted on {retraction.date}: "),
        sentence(retraction.reason),
        superseded or " Nothing replaces it.",
        class_="notice bad",
        role="alert",
    )


def _notes(artifact: Artifact) -> list[Markup]:
    notes = list(artifact.notes)
    if not artifact.complete:
        notes.insert(0, "Incomplete: the measurement ended before its last run.")
    notes += [
        f"Arm {arm.tag} did not run: {arm.unavailable}"
        for arm in artifact.arms
        if arm.unavailable is not None
    ]
    return [element("p", note, class_="notice") for note in notes]
