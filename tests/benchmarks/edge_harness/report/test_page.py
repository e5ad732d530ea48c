"""The document as text; what a browser makes of it is in test_chromium.py."""

from __future__ import annotations

import re

from benchmarks.edge_harness.artifact.schema import Retraction
from benchmarks.edge_harness.report.load import Source
from benchmarks.edge_harness.report.page import page
from benchmarks.edge_harness.statistics.expectations import Expectations, check
from tests.benchmarks.edge_harness import artifact_builder as build


def test_nothing_outside_the_page_is_named() -> None:
    text = page([Source("a.json", build.grid(control=True), None)], "t")
    assert re.findall(r"(?:src|href)=\"(?!data:,|#)[^\"]*\"", text) == []
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_notes_and_what_is_missing_come_first() -> None:
    artifact = build.grid(complete=False, notes=["decode measured on an empty KV cache"])
    artifact.arms.append(build.arm_provenance("later", unavailable="not implemented yet"))
    text = page([Source("a.json", artifact, None)], "t")
    for notice in (
        "Incomplete: ",
        "decode measured on an empty KV cache",
        "Arm later did not run: not implemented",
    ):
        assert text.index(notice) < text.index("<table")


def test_one_result_needs_no_index() -> None:
    one = Source("a.json", build.probe(), None)
    assert "<nav" not in page([one], "t")
    assert "<nav" in page([one, one], "t")


def test_the_same_files_make_the_same_page() -> None:
    def made() -> str:
        return page([Source("a.json", build.grid(), None)], "t")

    assert made() == made()


def test_checks_are_shown() -> None:
    artifact = build.grid()
    expected = Expectations(arms={"ours": {"tg_tps": 800.0}}, bands_pct={"tg_tps": 5})
    artifact.checks = check(expected, artifact.summaries, {})
    assert 'class="status regression"' in page([Source("a.json", artifact, None)], "t")


def test_a_retracted_file_without_readable_figures() -> None:
    retraction = Retraction(date="2026-01-05", reason="<old>", superseded_by=None)
    text = page([Source("a.json", None, retraction)], "t")
    assert "&lt;old&gt;" in text
    assert "Nothing replaces it." in text


def test_what_a_folder_passed_over_is_said_before_everything() -> None:
    sources = [Source("a.json", build.probe(), None), Source("<b>.json", None, None, "expected JSON: cut")]
    text = page(sources, "t")
    assert "Not shown: &lt;b&gt;.json: expected JSON: cut" in text[: text.index("<article")]
    assert "<nav" not in text
    assert text.count("<article") == 1


def test_failures_are_shown_with_what_they_wrote() -> None:
    artifact = build.grid()
    artifact.runs[-1].stderr_tail = "Traceback <module>"
    text = page([Source("a.json", artifact, None)], "t")
    assert "1 of them not usable" in text
    assert "Traceback &lt;module&gt;" in text
