"""Grids of known truth: how often the verdicts are wrong, and how often they find what is there."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from benchmarks.edge_harness.artifact.schema import Run
from benchmarks.edge_harness.grid.order import slots
from benchmarks.edge_harness.statistics.paired import paired_interval
from benchmarks.edge_harness.statistics.verdict import NAMED_METRIC_ERROR, compare, compare_all
from tests.benchmarks.edge_harness import artifact_builder as build

PASSES, GRIDS = 7, 100

# The logarithm of a run's figure: (generator, what the pass has in common, place among all runs, 0..1).
Model = Callable[[random.Random, float, float], float]


def noise(sd: float) -> Model:
    return lambda rng, common, when: rng.gauss(0, sd)


def drift(amount: float) -> Model:
    """The machine slows down by ``amount`` from the first run to the last."""
    return lambda rng, common, when: rng.gauss(0, 0.01) - amount * when


def swings(rng: random.Random, common: float, when: float) -> float:
    """A neighbour halves the speed of some passes; within a pass 1 % is left."""
    return rng.gauss(0, 0.01) + common


def heavy_tails(rng: random.Random, common: float, when: float) -> float:
    """Student's t with three degrees of freedom on top of the swings: single runs are far off."""
    return swings(rng, common, when) + 0.01 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3)


MODELS = {
    "1 % noise": noise(0.01),
    "10 % noise": noise(0.10),
    "3 % drift": drift(0.03),
    "20 % drift": drift(0.2),
    "2x swings of a pass": swings,
    "heavy tails": heavy_tails,
}


def simulate(seed: int, model: Model, effects: dict[str, float], metrics: tuple[str, ...]) -> list[Run]:
    rng = random.Random(seed)
    tags, runs = list(effects), []
    common = [math.log(2) if rng.random() < 0.3 else 0.0 for _ in range(PASSES)]
    for slot in slots(tags, PASSES):
        when = len(runs) / (PASSES * len(tags))
        figures = {
            name: 50 * (1 + effects[slot.tag]) * math.exp(model(rng, common[slot.pass_no - 1], when))
            for name in metrics
        }
        runs.append(build.run(slot.tag, slot.pass_no, figures))
    return runs


def verdicts(model: Model, effect: float) -> list[str]:
    return [
        compare(simulate(seed, model, {"A": effect, "B": 0.0}, ("tg_tps",)), "tg_tps", "A", "B", {}).verdict
        for seed in range(GRIDS)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_equal_arms_differ_in_at_most_5_of_100_grids(name: str) -> None:
    found = verdicts(MODELS[name], 0.0)
    assert set(found) <= {"a_higher", "a_lower", "no_difference"}
    assert GRIDS - found.count("no_difference") <= 5


@pytest.mark.parametrize("name", ["1 % noise", "2x swings of a pass", "3 % drift"])
def test_a_real_3_percent_is_found(name: str) -> None:
    found = verdicts(MODELS[name], 0.03)
    assert found.count("a_higher") >= 95
    assert found.count("a_lower") == 0


def test_10_percent_noise_hides_3_percent() -> None:
    """The interval must not be tight by construction."""
    assert verdicts(MODELS["10 % noise"], 0.03).count("no_difference") >= 90


def test_many_arms_and_metrics_differ_in_at_most_5_of_100_grids() -> None:
    """Thirty verdicts a grid; a grid counts as wrong when one of them is. Of 400, because 3 of 100 are to be
    expected, and then 6 are no rarity."""
    hundreds = 4
    metrics = ("tg_tps", "pp_tps", "ttft_ms", "itl_ms_p50", "itl_ms_p99", "step_ms", "sampled.peak_processes")
    metrics += ("ceiling_gbps", "ceiling_share", "swap_tree_mb")
    effects = {"A": 0.0, "B": 0.0, "C": 0.0, "D": 0.0}
    declared = build.spec(list(effects))
    wrong = uncorrected = 0
    for seed in range(hundreds * GRIDS):
        runs = simulate(seed, noise(0.01), effects, metrics)
        found = compare_all(runs, declared, "tg_tps")
        assert len(found) == 30
        wrong += any(comparison.verdict != "no_difference" for comparison in found)
        uncorrected += any(
            compare(runs, name, tag, "A", {}).verdict != "no_difference"
            for name in metrics
            for tag in ("B", "C", "D")
        )
    assert wrong <= hundreds * 5
    # Without the correction the same grids are full of differences.
    assert uncorrected >= hundreds * 20


def test_why_the_named_metric_has_a_98_percent_interval() -> None:
    """Over many grids: the rates that the choice rests on, as the module says them."""
    rng = random.Random(1)
    grids = 4000
    found = {(confidence, effect): 0 for confidence in (0.98, 0.99) for effect in (0.0, 0.03)}
    for _ in range(grids):
        chance = [rng.gauss(0, 0.01) - rng.gauss(0, 0.01) for _ in range(PASSES)]
        for confidence, effect in found:
            ratios = [math.log1p(effect) + x for x in chance]
            found[confidence, effect] += paired_interval(ratios, confidence).side != 0
    rates = {key: 100 * count / grids for key, count in found.items()}
    assert rates[0.98, 0.0] == pytest.approx(2, abs=0.7)
    assert rates[0.99, 0.0] == pytest.approx(1, abs=0.5)
    assert rates[0.98, 0.03] == pytest.approx(97, abs=1)
    assert rates[0.99, 0.03] == pytest.approx(91, abs=1.5)
    assert NAMED_METRIC_ERROR == 0.02
