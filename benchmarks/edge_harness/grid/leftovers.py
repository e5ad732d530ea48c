"""Ending a run: its session, and whatever left the session but still carries the run's token."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil

TOKEN_VARIABLE = "EDGE_HARNESS_RUN"
GRACE_S = 3.0
POLL_S = 0.02


def members(session: int | None, token: str) -> list[psutil.Process]:
    """Living processes of the session, or started with the token in their environment.

    The session alone misses a daemon, the token alone a program that writes over its environment to set its
    title.
    """
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        try:
            if session is not None and os.getsid(pid) == session:
                belongs = True
            else:
                belongs = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if belongs:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        except (OSError, psutil.Error):
            # Ended meanwhile, or another user's: not started by this run.
            continue
    return found


def end(session: int | None, token: str, grace_s: float = GRACE_S) -> list[str]:
    """End every member of a run, first asking and after ``grace_s`` killing; their names.

    A member that forks while it is being ended is found in the next round.
    """
    names: dict[int, str] = {}
    deadline = time.monotonic() + grace_s
    asked = False
    while left := members(session, token):
        # SIGKILL cannot be refused; what is left 10 s later hangs in the kernel, and waiting will not help.
        if time.monotonic() > deadline + 10:
            break
        number = signal.SIGTERM if grace_s > 0 and time.monotonic() < deadline else signal.SIGKILL
        for process in left:
            try:
                names.setdefault(process.pid, process.name())
                if number == signal.SIGKILL or not asked:
                    process.send_signal(number)
            except psutil.Error:
                continue
        asked = True
        # Not with wait(), which would reap the harness's own child before its account has been read.
        time.sleep(POLL_S)
    return list(names.values())
