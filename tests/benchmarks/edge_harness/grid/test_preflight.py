"""When cores are too busy, and what is said of them: windows from a script."""

from __future__ import annotations

import pytest

from benchmarks.edge_harness.grid import preflight
from benchmarks.edge_harness.grid.monitors import CoreLoad, OccupancySeen


def window(*foreign: float, steal: float = 0.0, processes: tuple = ()) -> OccupancySeen:
    return OccupancySeen({core: CoreLoad(share, steal) for core, share in enumerate(foreign)}, processes)


@pytest.mark.parametrize(
    ("windows", "too_busy"),
    [
        ([window(0.0, 0.0), window(0.0, 0.0)], False),
        ([window(0.04, 0.04), window(0.04, 0.04)], False),
        # A transient: the second window was quiet.
        ([window(1.0, 1.0), window(0.0, 0.0)], False),
        ([window(0.0, 0.0), window(1.0, 0.0)], False),
        # One process that wanders: each core was quiet in one window, and the cores in none.
        ([window(1.0, 0.0), window(0.0, 1.0)], True),
        # One straggler among many.
        ([window(0.9, *[0.0] * 23)] * 2, True),
        ([window(0.2, *[0.0] * 23)] * 2, False),
        # A little everywhere.
        ([window(*[0.08] * 4)] * 2, True),
        # Taken by the hypervisor.
        ([window(0.0, 0.0, steal=0.1)] * 2, True),
    ],
)
def test_busy_cores(windows: list[OccupancySeen], too_busy: bool) -> None:
    assert preflight.judge(windows).is_too_busy is too_busy


def test_the_sentence_names_process_core_and_share() -> None:
    processes = ((12, "python", 1, 0.96), (9, "sshd", 1, 0.01), (4, "cc1", 0, 0.03))
    found = preflight.judge([window(0.03, 0.97, steal=0.02, processes=processes)] * 2)
    assert found.sentence == "core 1 is 99 % busy (python (pid 12) 96 %, the hypervisor 2 %)"


def test_what_wanders_is_named_too() -> None:
    windows = [window(1.0, 0.0), window(0.0, 1.0, processes=((12, "python", 1, 0.97),))]
    assert (
        preflight.judge(windows).sentence == "the cores are 50 % busy, each at times (python (pid 12) 97 %)"
    )


def test_short_lived_processes_have_no_name() -> None:
    assert "with no process that takes much of it" in preflight.judge([window(0.5)] * 2).sentence


def test_two_windows_are_looked_at() -> None:
    asked = []

    class Monitors:
        def occupancy(self, cores, window_s, own_pids):
            asked.append((cores, window_s, own_pids))
            return window(0.0)

    preflight.look(Monitors(), [0], [1])
    assert asked == [([0], 0.75, [1])] * 2
