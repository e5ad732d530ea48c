"""Allocators and OpenMP runtimes, from the text of a maps file."""

from __future__ import annotations

import os

import pytest

from benchmarks.edge_harness.provenance.libraries import libraries_of, observed_libraries

LIBC = "7f00-7f01 r-xp 00000000 fe:00 12   /usr/lib/x86_64-linux-gnu/libc.so.6\n"
GOMP = "7f02-7f03 r-xp 00000000 fe:00 13   /opt/venv/torch/lib/libgomp-a34b3233.so.1\n"
IOMP = "7f04-7f05 r-xp 00000000 fe:00 14   /opt/lib/libiomp5.so\n"
TCMALLOC = "7f06-7f07 r-xp 00000000 fe:00 15   /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4 (deleted)\n"
ANON = "7f08-7f09 rw-p 00000000 00:00 0 \n7f0a-7f0b rw-p 00000000 00:00 0   [heap]\n"


@pytest.mark.parametrize(
    ("maps", "allocator", "runtimes"),
    [
        ("", None, []),
        (ANON, None, []),
        (LIBC + ANON, "glibc", []),
        (LIBC + TCMALLOC, "tcmalloc", []),
        (GOMP + GOMP + IOMP + LIBC, "glibc", ["libgomp-a34b3233.so.1", "libiomp5.so"]),
    ],
)
def test_from_text(maps: str, allocator: str | None, runtimes: list[str]) -> None:
    found = libraries_of(maps)
    assert (found.allocator, found.openmp_runtimes) == (allocator, runtimes)


def test_of_this_process() -> None:
    import torch  # noqa: F401

    found = observed_libraries(os.getpid())
    assert found.allocator is not None
    assert found.openmp_runtimes
