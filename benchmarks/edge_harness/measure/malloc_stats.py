"""What glibc's allocator and Python's small-object allocator hold, in bytes."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from dataclasses import dataclass


class _MallInfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


@dataclass(frozen=True)
class MallocStats:
    """``in_use_bytes`` and ``free_bytes`` are of the heaps, ``mapped_bytes`` of blocks that have a mapping of
    their own. All are address space: free chunks may or may not be resident."""

    in_use_bytes: int
    free_bytes: int
    mapped_bytes: int


def malloc_stats() -> MallocStats | None:
    """Over all arenas; ``None`` where the C library has no ``mallinfo2``."""
    try:
        call = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    call.restype = _MallInfo2
    info = call()
    return MallocStats(info.uordblks, info.fordblks, info.hblkhd)


def python_arena_bytes() -> int | None:
    """Bytes of the arenas of Python's object allocator, as its own report says; ``None`` where it is off."""
    with tempfile.TemporaryFile("w+") as file:
        saved = os.dup(2)
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        return arena_bytes_of(file.read())


def arena_bytes_of(report: str) -> int | None:
    """The arenas' bytes in the text of ``sys._debugmallocstats``."""
    found = re.search(r"^\s*(\d+) arenas \* (\d+) bytes/arena", report, re.MULTILINE)
    return int(found[1]) * int(found[2]) if found else None
