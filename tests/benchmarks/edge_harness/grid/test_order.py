"""The order of runs, exactly."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.edge_harness.grid.order import Slot, order_of_pass, slots


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("A", ["A", "A", "A"]),
        ("AB", ["AB", "BA", "BA", "AB", "AB", "BA", "BA"]),
        ("ABC", ["ABC", "CBA", "BCA", "ACB", "CAB", "BAC", "ABC"]),
        ("ABCD", ["ABCD", "DCBA", "BCDA", "ADCB", "CDAB", "BADC", "DABC", "CBAD", "ABCD"]),
    ],
)
def test_passes_are_rotated_and_every_second_one_mirrored(tags: str, expected: list[str]) -> None:
    assert ["".join(order_of_pass(tags, number)) for number in range(1, len(expected) + 1)] == expected


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
def test_no_arm_is_favoured(arms: int) -> None:
    """Over two passes for each arm every arm has been in each position twice, and before each other as often
    as after it."""
    tags = [chr(ord("A") + number) for number in range(arms)]
    made = slots(tags, 2 * arms)
    places = Counter((slot.tag, slot.position) for slot in made)
    assert places == {(tag, position): 2 for tag in tags for position in range(1, arms + 1)}
    before = Counter()
    for number in range(1, 2 * arms + 1):
        order = order_of_pass(tags, number)
        before.update((a, b) for i, a in enumerate(order) for b in order[i + 1 :])
    assert set(before.values()) == {arms}


def test_slots_count_from_one() -> None:
    assert slots(["a", "b"], 2) == [Slot(1, 1, "a"), Slot(1, 2, "b"), Slot(2, 1, "b"), Slot(2, 2, "a")]
