"""What a grid's figures are, and by which rules."""

from __future__ import annotations

from typing import Any

from benchmarks.edge_harness.artifact.schema import Comparison, Run
from benchmarks.edge_harness.grid.figures import figures, inconsistencies
from benchmarks.edge_harness.spec import Spec
from tests.benchmarks.edge_harness.artifact_builder import run, spec


def runs(metric: str, said: dict[str, list[dict[str, Any]]], *, cold: bool = False) -> list[Run]:
    """Three passes of two arms, of which the second is twice the first; ``said`` is what they report."""
    return [
        run(
            tag,
            number,
            {metric: (1 + (tag == "b")) * (1 + number / 1000)},
            cold_cache=cold and number == 1,
            reported=said.get(tag, [{}] * 3)[number - 1],
        )
        for number in range(1, 4)
        for tag in "ab"
    ]


def compared(
    made: list[Run], of: Spec, metric: str, refusal: str | None = None, rules: int | None = 2
) -> Comparison:
    (found,) = figures(made, of, metric, refusal, rules).comparisons
    return found


def adapters(**changes: Any) -> Spec:
    arms = [{"tag": "a", "adapter": "ours", "model": "m"}, {"tag": "b", "command": ["x"]}]
    return Spec.model_validate({"arms": arms} | changes)


def test_what_was_sampled_of_an_adapters_program_is_not_compared() -> None:
    made = runs("sampled.wall_s", {})
    found = compared(made, adapters(), "sampled.wall_s")
    assert found.verdict == "not_comparable"
    assert found.sentence.startswith(
        "not comparable because an adapter's program does more than its workload"
    )
    # Commands are the user's own: what they do is what is compared.
    assert compared(made, spec("ab"), "sampled.wall_s").verdict == "a_higher"
    assert compared(runs("tg_tps", {}), adapters(), "tg_tps").verdict == "a_higher"
    assert compared(made, adapters(), "sampled.wall_s", rules=None).verdict == "a_higher"


def test_an_arm_whose_runs_differ_is_not_compared() -> None:
    said = {"a": [{"ran": {"bits": 4}}, {"ran": {"bits": 4}}, {"ran": {"bits": 8}}]}
    made = runs("tg_tps", said)
    assert (
        compared(made, spec("ab"), "tg_tps").sentence == "not comparable because the runs of a differ in ran"
    )
    assert compared(made, spec("ab"), "tg_tps", rules=None).verdict == "a_higher"
    made[-2].status, made[-2].reason = "failed", "x"
    assert list(inconsistencies(made, "a")) == []


def test_a_refusal_holds_for_all() -> None:
    found = compared(runs("tg_tps", {}), spec("ab"), "tg_tps", "the build changed")
    assert (found.verdict, found.sentence) == ("not_comparable", "not comparable because the build changed")


def test_memory_of_every_kind_leaves_cold_runs_out_since_the_second_rules() -> None:
    made = runs("private_tree_mb", {}, cold=True)
    assert [row.n for row in figures(made, spec("ab"), "private_tree_mb").summaries] == [2, 2]
    assert [row.n for row in figures(made, spec("ab"), "private_tree_mb", rules=None).summaries] == [3, 3]
    declared = {"private_tree_mb": {"direction": "lower", "needs_warm_cache": True}}
    own = spec("ab", metrics=declared)
    assert [row.n for row in figures(made, own, "private_tree_mb", rules=None).summaries] == [2, 2]
