"""How long a process has lived, from the kernel's own record of its start.

The kernel keeps the start in clock ticks since boot (10 ms). ``btime``, from which a time of day is usually
made, has a resolution of a second; the time since boot has nanoseconds, so it is the one used.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def start_ticks(stat: str) -> int:
    """Field 22 of ``/proc/<pid>/stat``. A program's name may hold spaces and parentheses."""
    return int(stat.rpartition(")")[2].split()[19])


def start_ticks_of(pid: int) -> int:
    """Identity of a process together with its number: a number is used again. Raises ``OSError``."""
    return start_ticks(Path(f"/proc/{pid}/stat").read_text(errors="replace"))


def process_age_s(pid: int | None = None) -> float:
    """Seconds since process ``pid`` (default: this one) was forked, to 10 ms; an ``exec`` keeps it."""
    started_s = start_ticks_of(os.getpid() if pid is None else pid) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
