"""Which allocator and which OpenMP runtimes a process has mapped: seen from outside, for any program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_OPENMP = re.compile(r"^lib(gomp|iomp5|omp)(-[0-9a-f]+)?\.so")
_ALLOCATORS = {
    "tcmalloc": re.compile(r"^libtcmalloc"),
    "jemalloc": re.compile(r"^libjemalloc"),
    "mimalloc": re.compile(r"^libmimalloc"),
}
_LIBC = re.compile(r"^(libc\.so\.6|libc-2\.\d+\.so)$")


@dataclass(frozen=True)
class ObservedLibraries:
    """``allocator`` is None where no libc was seen either (a static program)."""

    allocator: str | None
    openmp_runtimes: list[str]


def observed_libraries(pid: int, proc: Path = Path("/proc")) -> ObservedLibraries:
    """Read ``/proc/<pid>/maps``. Raises ``OSError`` when the process has ended or may not be read."""
    return libraries_of((proc / str(pid) / "maps").read_text())


def libraries_of(maps: str) -> ObservedLibraries:
    """The same from the text of a ``maps`` file."""
    fields = (line.split(maxsplit=5) for line in maps.splitlines())
    names = sorted({Path(field[5]).name for field in fields if len(field) == 6 and field[5].startswith("/")})
    allocator = "glibc" if any(_LIBC.match(name) for name in names) else None
    for name, pattern in _ALLOCATORS.items():
        if any(pattern.match(library) for library in names):
            allocator = name
    return ObservedLibraries(allocator, [name for name in names if _OPENMP.match(name)])
