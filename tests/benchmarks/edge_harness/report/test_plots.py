"""Every sample is in a plot, at its place."""

from __future__ import annotations

import re

from benchmarks.edge_harness.artifact.schema import MemoryPoint
from benchmarks.edge_harness.metrics import METRICS
from benchmarks.edge_harness.report.memory_plot import memory_plots, thin_out
from benchmarks.edge_harness.report.ratio_plot import ratio_plot
from benchmarks.edge_harness.report.strip_plot import raw_samples, strip_plot
from benchmarks.edge_harness.statistics.verdict import compare
from tests.benchmarks.edge_harness import artifact_builder as build

COLOURS = {"A": 0, "B": 1}


def places(markup: str) -> list[float]:
    return [float(x) for x in re.findall(r'cx="([\d.]+)%"', markup)]


def test_samples_lie_in_order_of_their_values() -> None:
    runs = build.pairs_of("tg_tps", [10, 12, 11], [20, 22, 21])
    drawn = places(strip_plot(runs, METRICS["tg_tps"], ["A", "B"], COLOURS))
    assert len(drawn) == 6
    a, b = drawn[:3], drawn[3:]
    assert a[0] < a[2] < a[1] < b[0] < b[2] < b[1]
    assert abs((a[1] - a[0]) - (b[1] - b[0])) < 0.02


def test_a_cold_run_does_not_stretch_the_axis() -> None:
    runs = build.pairs_of("ready_s", [90, 10, 11], [95, 9, 12])
    for run in runs[:2]:
        run.cold_cache = True
    drawn = strip_plot(runs, METRICS["ready_s"], ["A", "B"], COLOURS)
    assert len(places(drawn)) == 4
    assert "90 ▸" in drawn
    assert "pass 1: 90 s, not counted (cold cache)" in drawn
    assert max(places(drawn)) - min(places(drawn)) > 80


def test_nothing_is_drawn_of_nothing() -> None:
    assert strip_plot([build.failed("A", 1)], METRICS["tg_tps"], ["A"], COLOURS) == ""
    assert memory_plots([build.run("A", 1, {})], ["A"], COLOURS) == []


def test_what_a_program_measured_within_a_run_is_drawn() -> None:
    run = build.run("A", 1, {"tg_tps": 10}, reported={"samples": {"tg_tps": [9, 10.0, "x", True, None]}})
    assert raw_samples(run, "tg_tps") == [9, 10]
    assert raw_samples(run, "pp_tps") == []
    assert strip_plot([run], METRICS["tg_tps"], ["A"], COLOURS).count('class="raw"') == 2
    assert raw_samples(build.run("A", 1, {}, reported={"samples": [1, 2]}), "tg_tps") == []


def test_ratios_have_an_interval_only_where_the_comparison_has() -> None:
    runs = build.pairs_of("tg_tps", [12, 12.1, 12.2], [10, 10.1, 10])
    shown = compare(runs, "tg_tps", "A", "B", {})
    drawn = ratio_plot(runs, METRICS["tg_tps"], [shown], COLOURS)
    assert (len(places(drawn)), drawn.count('class="interval"'), drawn.count('class="one"')) == (3, 1, 1)
    refused = compare(runs, "tg_tps", "A", "B", {}, refusal="their tokens differ")
    drawn = ratio_plot(runs, METRICS["tg_tps"], [refused], COLOURS)
    assert (len(places(drawn)), drawn.count('class="interval"')) == (3, 0)
    assert "their tokens differ" in drawn


def test_ratios_of_figures_that_have_none() -> None:
    runs = build.pairs_of("tg_tps", [0, 0], [1, -1])
    comparison = compare(runs, "tg_tps", "A", "B", {})
    assert ratio_plot(runs, METRICS["tg_tps"], [comparison], COLOURS) == ""


def test_thinning_keeps_the_peak_and_the_ends() -> None:
    points = [
        MemoryPoint(t_s=i / 10, rss_anon_mb=500.0 if i == 4321 else 100.0, rss_file_mb=1.0, processes=1)
        for i in range(10_000)
    ]
    kept = thin_out(points, lambda point: point.rss_anon_mb)
    assert len(kept) <= 300
    assert (432.1, 500.0) in kept
    assert kept[0] == (0.0, 100.0)
    assert kept == sorted(kept)


def test_a_memory_plot_has_every_run_and_every_phase() -> None:
    artifact = build.grid(passes=3)
    first, _ = memory_plots(artifact.runs, ["stock", "ours"], {"stock": 0, "ours": 1})
    # Three runs, and RssFile of one.
    assert first.count("<polyline") == 4
    assert first.count('class="line cold"') == 1
    assert first.count('class="phase-dot"') == 4
    assert "at context (27.9 s)" in first
