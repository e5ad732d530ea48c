"""What Ctrl-C, a termination and a lost terminal do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def stops_unwind() -> Iterator[None]:
    """A termination or a lost terminal ends the run in flight and the grid in order, as Ctrl-C does."""
    with _handlers({signal.SIGTERM: _stop, signal.SIGHUP: _stop}):
        yield


@contextmanager
def stops_ignored() -> Iterator[None]:
    """For what must not be left half-done: ending a run's processes, writing the result. A few seconds."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _handlers(dict.fromkeys(names, signal.SIG_IGN)):
        yield


@contextmanager
def _handlers(wanted: dict[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        # Signals are the main thread's; a caller in another thread keeps its own.
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
