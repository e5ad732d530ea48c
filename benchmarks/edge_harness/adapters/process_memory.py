"""Memory of the calling process, from ``/proc/self``; for engines whose environments lack our monitor.

The standard library alone. The figures are of one process: an engine's worker has no children, which
:func:`has_children` proves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_KIB = 1024
_MB = 1e6

Read = Callable[[str], str]


def read_proc(name: str) -> str:
    """The text of ``/proc/self/<name>``."""
    return Path("/proc/self", name).read_text()


def field_bytes(text: str, name: str) -> int | None:
    """The value of a line ``name: 12 kB`` of ``status`` or ``smaps_rollup``."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * _KIB
    return None


def status_mb(read: Read = read_proc) -> dict[str, float]:
    """``rss_anon``, ``rss_file``, ``rss_shmem``, ``swap`` in MB."""
    text = read("status")
    fields = {"rss_anon": "RssAnon", "rss_file": "RssFile", "rss_shmem": "RssShmem", "swap": "VmSwap"}
    return {ours: (field_bytes(text, theirs) or 0) / _MB for ours, theirs in fields.items()}


def pss_anon_mb(read: Read = read_proc) -> float | None:
    """``Pss_Anon`` in MB; costs milliseconds for every GiB that is mapped. ``None`` before Linux 5.4."""
    found = field_bytes(read("smaps_rollup"), "Pss_Anon")
    return None if found is None else found / _MB


def has_children(read: Read = read_proc) -> bool:
    """Whether any thread of this process has a child: then this process is not the whole tree."""
    for thread in os.listdir("/proc/self/task"):
        # A thread may end while the list is gone through; its children are then another thread's.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if read(f"task/{thread}/children").strip():
                return True
    return False


def trim() -> bool:
    """Give free heap pages back to the kernel; whether the C library can."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is None:
        return False
    malloc_trim(0)
    return True


class Peak:
    """The highest RssAnon while entered, sampled every 20 ms by a thread; not for use around timed code.

    A binding that computes without letting go of the interpreter's lock stops the thread: ``longest_gap_s``
    says for how long nothing was seen.
    """

    def __init__(
        self,
        interval_s: float = 0.02,
        read: Read = read_proc,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._read = read
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._last_s: float | None = None
        self.rss_anon_mb = 0.0
        self.longest_gap_s = 0.0

    def sample(self) -> None:
        self.rss_anon_mb = max(self.rss_anon_mb, status_mb(self._read)["rss_anon"])
        now = self._clock()
        if self._last_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_s)
        self._last_s = now

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.sample()

    def __enter__(self) -> Peak:
        self.sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()
