"""What a signal does to a grid, by real signals to this process."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from benchmarks.edge_harness.grid.stops import stops_ignored, stops_unwind


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_unwinds(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stopped, stops_unwind():
        os.kill(os.getpid(), number)
    assert stopped.value.code == 128 + number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_must_end_is_not_stopped(number: signal.Signals) -> None:
    with stops_unwind(), stops_ignored():
        os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_another_thread_changes_no_handler() -> None:
    found = []

    def look() -> None:
        with stops_ignored():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
