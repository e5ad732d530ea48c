"""The order of the runs: the first pass stands alone, then the passes come in pairs, one the mirror of the
other, and the order is rotated from pair to pair.

Mirroring gives every two arms as many passes in which the one comes first as the other, so that a drift of
the machine does not favour an arm; rotating moves every arm through every position, so that neither does
being first. The first pass may have cold caches, and then many metrics leave it out: were it one half of a
pair, its twin would count alone. With two arms the passes are AB, AB BA, BA AB …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """One run to be made; numbers count from 1."""

    pass_no: int
    position: int
    tag: str


def order_of_pass(tags: Sequence[str], pass_no: int) -> list[str]:
    """The arms in the order in which pass ``pass_no`` (from 1) runs them."""
    pair, second = divmod(pass_no, 2)
    start = pair % len(tags)
    rotated = [*tags[start:], *tags[:start]]
    return rotated if second else rotated[::-1]


def slots(tags: Sequence[str], passes: int) -> list[Slot]:
    """Every run of a grid, in order."""
    return [
        Slot(pass_no, position, tag)
        for pass_no in range(1, passes + 1)
        for position, tag in enumerate(order_of_pass(tags, pass_no), 1)
    ]
