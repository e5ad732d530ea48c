"""One grid of a user at a time: two on one machine disturb each other, on other cores too.

The lock is the kernel's, on a file in the user's runtime folder. It goes with the process that holds it,
however that ends, so a file that is left behind locks nothing.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from vllm_omni import settings


def lock_path() -> Path:
    """In ``$XDG_RUNTIME_DIR`` where it is given and there, else in the user's cache folder."""
    given = settings.given("XDG_RUNTIME_DIR").get("XDG_RUNTIME_DIR", "")
    if given.startswith("/") and Path(given).is_dir():
        return Path(given) / "vllm-omni-edge-bench.lock"
    return settings.user_cache_folder() / "bench.lock"


class HostLock:
    """Taken at once or not at all; ``holder`` says by whom when it is not. Where the user has no folder to
    write to, there is nothing to lock, and two grids find each other on the cores alone."""

    def __init__(self, out: Path) -> None:
        self.holder: str | None = None
        self._file: TextIO | None = None
        path = lock_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not truncated: until the lock is ours, what it says is another's.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self._file = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.holder = self._file.read().strip() or "a process that has not said which"
            return
        self._file.truncate()
        self._file.write(f"process {os.getpid()}, --out {out.resolve()}\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
