"""The three sentences, and everything that must end in the third."""

from __future__ import annotations

import math
import re

import pytest

from benchmarks.edge_harness.artifact.schema import Comparison, Run, Verification
from benchmarks.edge_harness.metrics import Metric
from benchmarks.edge_harness.statistics.paired import Interval
from benchmarks.edge_harness.statistics.verdict import compare, compare_all, ratio_text
from tests.benchmarks.edge_harness import artifact_builder as build

FASTER = [12.3, 12.4, 12.2, 12.35, 12.25, 12.3, 12.28]
SLOWER = [10.0, 10.1, 9.95, 10.0, 10.02, 9.98, 10.05]


def tg(runs: list[Run], **options: object) -> Comparison:
    return compare(runs, "tg_tps", "A", "B", {}, **options)  # type: ignore[arg-type]


def test_a_difference() -> None:
    found = tg(build.pairs_of("tg_tps", FASTER, SLOWER))
    assert found.sentence == "A is 1.23× (1.22–1.23) of B"
    assert (found.verdict, found.better, found.pairs, found.note) == ("a_higher", "A", 7, "")
    assert found.confidence == 0.98
    assert found.low is not None
    assert found.high is not None
    assert 1.215 < found.low < 1.226 < found.high < 1.235


def test_the_better_arm_follows_the_metrics_direction() -> None:
    runs = build.pairs_of("ttft_ms", FASTER, SLOWER)
    found = compare(runs, "ttft_ms", "A", "B", {})
    assert (found.verdict, found.better) == ("a_higher", "B")
    own = {"own": Metric("own", "", "lower", "")}
    runs = build.pairs_of("own", SLOWER, FASTER)
    found = compare(runs, "own", "A", "B", own)
    assert (found.verdict, found.better) == ("a_lower", "A")


def test_no_difference() -> None:
    found = tg(build.pairs_of("tg_tps", SLOWER, SLOWER[::-1]))
    assert (found.sentence, found.verdict, found.better) == ("no difference shown", "no_difference", None)
    assert found.ratio == pytest.approx(1, abs=0.01)
    assert tg(build.pairs_of("tg_tps", SLOWER, SLOWER)).sentence == "no difference shown"


def test_more_comparisons_widen_the_interval() -> None:
    runs = build.pairs_of("tg_tps", FASTER, SLOWER)
    alone, among_many = tg(runs), tg(runs, n_comparisons=40)
    assert among_many.confidence == pytest.approx(0.9995)
    assert (among_many.high or 0) / (among_many.low or 1) > (alone.high or 0) / (alone.low or 1)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([], "0 pairs of runs that count, expected 3 or more"),
        (build.pairs_of("tg_tps", [2, 2], [1, 1]), "2 pairs of runs that count, expected 3 or more"),
        (
            [
                *build.pairs_of("tg_tps", [2, 2], [1, 1]),
                build.failed("A", 3),
                build.run("B", 3, {"tg_tps": 1}),
            ],
            "2 pairs of runs that count, expected 3 or more",
        ),
        (
            build.pairs_of("tg_tps", [2, 0, 2], [1, 1, 1]),
            "a ratio needs figures above zero, and tg_tps has others",
        ),
        (
            build.pairs_of("tg_tps", [2, 2, 2], [1, 1, -1]),
            "a ratio needs figures above zero, and tg_tps has others",
        ),
        (build.pairs_of("tg_tps", [2, math.nan, 2], [1, 1, 1]), "2 pairs of runs that count"),
        (
            [
                *build.pairs_of("tg_tps", FASTER, SLOWER),
                build.run("A", 8, {}, status="invalid", reason="declared head_bits 8, ran 16"),
            ],
            "1 run of A is invalid: declared head_bits 8, ran 16",
        ),
        (
            [*build.pairs_of("tg_tps", FASTER, SLOWER), build.run("A", 1, {"tg_tps": 9})],
            "A ran twice in pass 1",
        ),
        (
            build.pairs_of("tg_tps", FASTER, SLOWER, marked=[1, 2, 3, 4, 5]),
            "5 of 7 pairs were disturbed, which leaves fewer than 3",
        ),
        (build.pairs_of("tg_tps", [1e-300, 1e300, 1], [1e300, 1e-300, 1]), "the runs differ too much"),
    ],
)
def test_not_comparable(runs: list[Run], why: str) -> None:
    found = tg(runs)
    assert found.sentence.startswith(f"not comparable because {why}")
    assert found.verdict == "not_comparable"
    assert (found.ratio, found.low, found.high, found.better) == (None, None, None, None)


def test_not_comparable_without_a_direction() -> None:
    found = compare(build.pairs_of("own", FASTER, SLOWER), "own", "A", "B", {})
    assert found.sentence == "not comparable because it is not declared which direction of own is better"


def test_not_comparable_for_a_reason_found_elsewhere() -> None:
    found = tg(build.pairs_of("tg_tps", FASTER, SLOWER), refusal="their tokens differ")
    assert found.sentence == "not comparable because their tokens differ"


def test_an_arm_is_not_compared_with_itself() -> None:
    found = compare(build.pairs_of("tg_tps", FASTER, SLOWER), "tg_tps", "A", "A", {})
    assert found.verdict == "not_comparable"


def test_cold_runs_do_not_pair_where_warmth_matters() -> None:
    runs = build.pairs_of("ready_s", [90, *SLOWER], [80, *FASTER])
    for run in runs[:2]:
        run.cold_cache = True
    found = compare(runs, "ready_s", "A", "B", {})
    assert (found.pairs, found.better, found.note) == (7, "A", "")


def test_a_verdict_that_stands_without_disturbed_pairs_says_how_many_there_were() -> None:
    found = tg(build.pairs_of("tg_tps", FASTER, SLOWER, marked=[2]))
    assert found.sentence == "A is 1.23× (1.22–1.23) of B"
    assert found.note == "1 of 7 pairs were disturbed."


def test_a_verdict_that_rests_on_disturbed_pairs_is_none() -> None:
    """The undisturbed pairs scatter around 4 % too much to show it; the disturbed ones make up for it."""
    a = [10.5, 10.4, 10.45, 10.5, 10.8, 10.1, 10.4]
    b = [10.0] * 7
    assert tg(build.pairs_of("tg_tps", a, b)).verdict == "a_higher"
    found = tg(build.pairs_of("tg_tps", a, b, marked=[1, 2, 3, 4]))
    assert (found.sentence, found.better) == ("no difference shown", None)
    assert found.note == "4 of 7 pairs were disturbed. The verdict changes when they are left out."


def test_a_disturbance_that_hides_a_difference_makes_none_either() -> None:
    a, b = [3.0, *FASTER[1:]], SLOWER
    found = tg(build.pairs_of("tg_tps", a, b, marked=[1]))
    assert found.verdict == "no_difference"
    assert found.note.endswith("The verdict changes when they are left out.")


def test_lost_pairs_are_counted() -> None:
    runs = [
        *build.pairs_of("tg_tps", FASTER, SLOWER),
        build.failed("A", 8),
        build.run("B", 8, {"tg_tps": 10}),
    ]
    assert tg(runs).note == "1 of 8 passes have no pair."


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(1.234, 1.189, 1.279), "1.23× (1.19–1.28)"),
        (Interval(1.0021, 1.0009, 1.0033), "1.002× (1.001–1.003)"),
        (Interval(0.9979, 0.9960, 0.9998), "0.9979× (0.9960–0.9998)"),
        (Interval(0.01234, 0.0119, 0.0128), "0.0123× (0.0119–0.0128)"),
        (Interval(2.0, 2.0, 2.0), "2.00× (2.00–2.00)"),
        (Interval(1.001, 0.99, 1.01), "1.00× (0.99–1.01)"),
    ],
)
def test_no_rounding_moves_a_bound_to_one(interval: Interval, text: str) -> None:
    assert ratio_text(interval) == text


def test_every_sentence_is_one_of_three() -> None:
    shapes = re.compile(
        r"\S+ is [\d.]+× \([\d.]+–[\d.]+\) of \S+|no difference shown|not comparable because .+"
    )
    for seed in range(20):
        for comparison in build.grid(seed=seed, noise=0.05, control=True).comparisons:
            assert shapes.fullmatch(comparison.sentence)


def test_all_arms_against_the_first_with_the_named_metric_first() -> None:
    found = build.grid({"stock": 1.0, "ours": 1.3, "new": 1.5}).comparisons
    assert [(c.metric, c.a, c.b) for c in found[:3]] == [
        ("tg_tps", "ours", "stock"),
        ("tg_tps", "new", "stock"),
        ("pp_tps", "ours", "stock"),
    ]
    assert {c.confidence for c in found if c.metric == "tg_tps"} == {0.99}
    assert {c.confidence for c in found if c.metric != "tg_tps"} == {1 - 0.01 / 14}


def test_a_single_metric_is_the_named_one() -> None:
    (found,) = compare_all(build.pairs_of("tg_tps", FASTER, SLOWER), build.spec("BA"))
    assert (found.a, found.confidence) == ("A", 0.98)


def test_the_first_arm_that_ran_is_the_baseline() -> None:
    declared = build.spec("CBA")
    arms = [{"tag": "C", "unavailable": "not implemented yet"}, *declared.model_dump()["arms"][1:]]
    declared = type(declared).model_validate({**declared.model_dump(), "arms": arms})
    (found,) = compare_all(build.pairs_of("tg_tps", FASTER, SLOWER), declared)
    assert (found.a, found.b) == ("A", "B")
    assert compare_all([], declared) == []


def test_arms_that_computed_different_things_are_not_ranked() -> None:
    runs = build.pairs_of("tg_tps", FASTER, SLOWER)
    for run in runs:
        value = [1, 2, 3] if run.tag == "A" else [1, 2, 4]
        run.verification = Verification(kind="token_ids", value=value, of="x")
    (found,) = compare_all(runs, build.spec("BA"))
    assert found.sentence == "not comparable because their verification values disagree"
    (found,) = compare_all(runs, build.spec("BA", verification="ignored"))
    assert found.better == "A"


def test_a_control_asks_no_question_of_its_own() -> None:
    found = build.grid(control=True).comparisons
    assert {c.a for c in found} == {"ours"}
    assert {c.confidence for c in found if c.metric == "tg_tps"} == {0.98}


def test_nothing_is_said_where_the_control_differs() -> None:
    """The twin is 5 % slower than itself: the order of the runs, or their cores, decide."""
    runs = build.pairs_of("tg_tps", FASTER, SLOWER)
    twins = [build.run("twin", n, {"tg_tps": 0.95 * value}) for n, value in enumerate(SLOWER, 1)]
    declared = build.spec(["B", "A", "twin"])
    (found,) = compare_all([*runs, *twins], declared, control="twin")
    assert found.sentence == (
        "not comparable because the same arm twice differs: twin is 0.95× (0.95–0.95) of B"
    )
    same = [build.run("twin", n, {"tg_tps": value}) for n, value in enumerate(SLOWER[::-1], 1)]
    (found,) = compare_all([*runs, *same], declared, control="twin")
    assert found.better == "A"
    (found,) = compare_all(runs, declared, control="twin")
    assert found.better == "A"
