"""A grid on file is what its runs give, or it is refused with the first thing that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.schema import Artifact
from benchmarks.edge_harness.grid.recomputation import contradictions
from tests.benchmarks.edge_harness.artifact_builder import grid, probe, spec


def why(artifact: Artifact) -> str | None:
    return next(contradictions(artifact), None)


def edited(change: Callable[[dict[str, Any]], object], **options: Any) -> Artifact:
    content = grid(control=True, **options).model_dump(mode="json")
    change(content)
    return Artifact.model_validate(content)


@pytest.mark.parametrize("passes", [1, 3, 7])
def test_what_the_runs_give_is_right(passes: int) -> None:
    assert why(grid(control=True, passes=passes)) is None
    assert why(grid(control=True, passes=passes, complete=False)) is None
    assert why(probe()) is None


def without(tag: str) -> Callable[[dict[str, Any]], object]:
    return lambda c: c.update(runs=[run for run in c["runs"] if run["tag"] != tag])


def cut_to(passes: int) -> Callable[[dict[str, Any]], object]:
    return lambda c: c.update(runs=[run for run in c["runs"] if run["pass_no"] <= passes])


def scale(number: int, key: str, of: str, by: float = 1 + 1e-6) -> Callable[[dict[str, Any]], object]:
    return lambda c: c[of][number].update({key: c[of][number][key] * by})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (scale(0, "median", "summaries"), "summaries.0.median: the runs give "),
        (lambda c: c["summaries"].pop(), "summaries: the runs give "),
        (lambda c: c["comparisons"][0].update(sentence="ours is 9.00×"), "comparisons.0.sentence: the runs"),
        (lambda c: c["comparisons"][0].update(note="x"), "comparisons.0.note: the runs give "),
        (scale(0, "ratio", "noise_floor"), "noise_floor.0.ratio: the runs give "),
        (lambda c: c["runs"][4]["metrics"].update(tg_tps=99.0), "summaries."),
        (cut_to(3), "complete: expected 7 runs of arm stock, found 3"),
        (without("ours"), "complete: expected 7 runs of arm ours, found 0"),
        (lambda c: c.update(runs=[]), "complete: expected 7 runs of arm stock, found 0"),
        (
            lambda c: c["arms"].pop(1),
            "arms: expected those of spec, stock, ours, stock-control; found stock, ",
        ),
        (lambda c: c["arms"][1].update(unavailable="not built"), "arms: ours is unavailable and has runs"),
        (lambda c: c["runs"][0].update(pass_no=8), "runs: expected passes 1 to 7, found 8"),
        (lambda c: c.update(refusal="the build changed"), "comparisons.0."),
        (lambda c: c.update(rules=99), "rules: expected 1 to "),
    ],
)
def test_what_does_not_follow(change: Callable[[dict[str, Any]], object], expected: str) -> None:
    found = why(edited(change))
    assert found is not None
    assert found.startswith(expected)


def test_a_float_that_was_written_and_read_again_is_the_same() -> None:
    assert (
        why(edited(lambda c: c["summaries"][0].update(median=c["summaries"][0]["median"] * (1 + 1e-13))))
        is None
    )


def with_adapter(name: str, **changes: Any) -> Artifact:
    """The second arm is an adapter's, with what its program told."""
    made = grid()
    arms = [arm.model_dump() for arm in spec(["stock", "ours"], metric="tg_tps").arms]
    arms[1] |= {"command": None, "adapter": name, "model": "m"}
    declared = spec(["stock"], metric="tg_tps", passes=7, arms=arms)
    ours = made.arms[1].model_copy(update={"adapter": name} | changes)
    return made.model_copy(
        update={"spec": declared, "spec_sha256": declared.sha256(), "arms": [made.arms[0], ours]}
    )


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("ours", {}, None),
        ("ours", {"model": None}, "arms: ours: expected the model that an adapter's program reports"),
        ("ours", {"kernels": None}, "arms: ours: expected the kernels that ran, found none"),
        ("llama.cpp", {"model": None}, "arms: ours: expected the model that an adapter's program reports"),
        # Not every engine tells.
        ("llama.cpp", {"kernels": None}, None),
        ("ours", {"adapter": None}, "arms: ours: expected adapter ours, as in spec; found None"),
    ],
)
def test_an_adapters_program_tells_what_it_ran(
    name: str, changes: dict[str, Any], expected: str | None
) -> None:
    found = why(with_adapter(name, **changes))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(expected)
