"""Markdown: tables that hold whatever a title says."""

from __future__ import annotations

from benchmarks.edge_harness.artifact.schema import Retraction
from benchmarks.edge_harness.report.load import Source
from benchmarks.edge_harness.report.markdown import escape, markdown
from tests.benchmarks.edge_harness import artifact_builder as build


def test_tables_have_as_many_cells_in_every_row() -> None:
    artifact = build.grid({"stock": 1.0, "ours": 1.3}, control=True)
    lines = markdown([Source("a.json", artifact, None)], "t").splitlines()
    widths: list[set[int]] = [set()]
    for line in lines:
        if line.startswith("|"):
            widths[-1].add(line.replace(r"\|", "").count("|"))
        elif widths[-1]:
            widths.append(set())
    assert [len(width) for width in widths if width] == [1, 1, 1]
    assert any("ours is 1.3" in line and "| stock |" in line for line in lines)


def test_what_an_artifact_says_is_text() -> None:
    assert escape("a|b <script>\n`x` *y*") == r"a\|b \<script\> \`x\` \*y\*"
    text = markdown([Source("a.json", build.probe(title="<script>|", notes=["# no\n## heading"]), None)], "t")
    assert "<script>" not in text
    assert r"> \# no \#\# heading" in text


def test_retracted_figures_are_struck_out() -> None:
    retraction = Retraction(date="2026-01-05", reason="wrong head", superseded_by="new.json")
    artifact = build.grid(retraction=retraction)
    text = markdown([Source("a.json", artifact, retraction)], "t")
    assert "> **Retracted on 2026-01-05:** wrong head. Use new.json instead." in text
    rows = [line for line in text.splitlines() if line.startswith(("| tg", "| pp"))]
    assert len(rows) == 4
    assert all("~~" in row for row in rows)
    assert "~~" not in markdown([Source("a.json", build.grid(), None)], "t")


def test_incomplete_and_unavailable_are_said() -> None:
    artifact = build.grid(complete=False)
    artifact.arms.append(build.arm_provenance("later", unavailable="not implemented yet"))
    text = markdown([Source("a.json", artifact, None)], "t")
    assert "> **Incomplete:**" in text
    assert "> Arm later did not run: not implemented yet" in text
