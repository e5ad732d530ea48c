"""What two identical arms show."""

from __future__ import annotations

import math

import pytest

from benchmarks.edge_harness.statistics.noise_floor import NOTE, is_suspicious, noise_floor
from benchmarks.edge_harness.statistics.verdict import compare
from tests.benchmarks.edge_harness import artifact_builder as build


def test_floor_of_known_noise() -> None:
    ratios = [0.01, -0.01, 0.02, -0.02, 0.0]
    runs = build.pairs_of("tg_tps", [50 * math.exp(x) for x in ratios], [50.0] * 5)
    (floor,) = noise_floor(runs, "A", "B", {})
    assert (floor.metric, floor.pairs) == ("tg_tps", 5)
    assert floor.ratio == pytest.approx(1)
    assert floor.sd_pct == pytest.approx(100 * math.sqrt(0.001 / 4))
    # 3.7469 is Student's t of 4 degrees of freedom at 98 %.
    half_width = 3.7469 * math.sqrt(0.001 / 4 / 5)
    assert floor.half_width_pct == pytest.approx(100 * math.expm1(half_width), abs=1e-3)
    assert floor.high == pytest.approx(math.exp(half_width), abs=1e-5)
    assert not is_suspicious(floor)


def test_identical_arms_that_differ_are_suspicious() -> None:
    (floor,) = noise_floor(build.pairs_of("tg_tps", [51, 51.1, 51], [50, 50, 50]), "A", "B", {})
    assert is_suspicious(floor)


def test_no_floor_without_pairs_or_ratios() -> None:
    assert noise_floor(build.pairs_of("tg_tps", [1, 2], [1, 2]), "A", "B", {}) == []
    twice = [*build.pairs_of("tg_tps", [1, 2, 3], [1, 2, 3]), build.run("A", 1, {"tg_tps": 1})]
    assert noise_floor(twice, "A", "B", {}) == []
    assert noise_floor(build.pairs_of("swap_tree_mb", [0, 0, 0], [0, 0, 0]), "A", "B", {}) == []


def test_every_metric_has_the_floor_of_a_named_one() -> None:
    """Whose interval is tighter than that of the same arms' verdict among others, which the note says."""
    artifact = build.grid(control=True)
    floors = {floor.metric: floor for floor in artifact.noise_floor}
    assert floors.keys() == build.CENTRES.keys()
    among_others = compare(artifact.runs, "pp_tps", "stock-control", "stock", {}, 7, error_rate=0.01)
    assert among_others.low is not None
    assert among_others.high is not None
    assert among_others.high / among_others.low > floors["pp_tps"].high / floors["pp_tps"].low
    assert "the verdict's own interval counts, which is wider" in NOTE
