"""The order of runs, exactly."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.edge_harness.grid.order import Slot, order_of_pass, slots


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("A", ["A", "A", "A"]),
        ("AB", ["AB", "AB", "BA", "BA", "AB", "AB", "BA"]),
        ("ABC", ["ABC", "ACB", "BCA", "BAC", "CAB", "CBA", "ABC"]),
        ("ABCD", ["ABCD", "ADCB", "BCDA", "BADC", "CDAB", "CBAD", "DABC", "DCBA", "ABCD"]),
    ],
)
def test_after_the_first_pass_they_come_in_mirrored_pairs_that_rotate(tags: str, expected: list[str]) -> None:
    assert ["".join(order_of_pass(tags, number)) for number in range(1, len(expected) + 1)] == expected


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
def test_no_arm_is_favoured(arms: int) -> None:
    """Over two passes for each arm after the first pass, which may be cold, every arm has been in each place
    twice, and before each other as often as after it."""
    tags = [chr(ord("A") + number) for number in range(arms)]
    made = [slot for slot in slots(tags, 2 * arms + 1) if slot.pass_no > 1]
    places = Counter((slot.tag, slot.position) for slot in made)
    assert places == {(tag, position): 2 for tag in tags for position in range(1, arms + 1)}
    before = Counter()
    for number in range(2, 2 * arms + 2):
        order = order_of_pass(tags, number)
        before.update((a, b) for i, a in enumerate(order) for b in order[i + 1 :])
    assert set(before.values()) == {arms}


def test_slots_count_from_one() -> None:
    assert slots(["a", "b"], 2) == [Slot(1, 1, "a"), Slot(1, 2, "b"), Slot(2, 1, "a"), Slot(2, 2, "b")]
