"""What the allocators hold."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

from benchmarks.edge_harness.measure.malloc_stats import arena_bytes_of, malloc_stats

ROOT = Path(__file__).resolve().parents[4]


def test_a_block_moves_from_mapped_to_gone() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    # Above the largest threshold of glibc: a mapping of its own.
    size = 64 << 20
    before = malloc_stats()
    block = libc.malloc(size)
    held = malloc_stats()
    libc.free(block)
    after = malloc_stats()
    assert before is not None
    assert held is not None
    assert after is not None
    assert held.mapped_bytes - before.mapped_bytes >= size
    assert after.mapped_bytes == before.mapped_bytes


def test_the_arenas_line_of_pythons_report() -> None:
    report = "# arenas highwater mark     =      4\n4 arenas * 1048576 bytes/arena     =   4,194,304\n"
    assert arena_bytes_of(report) == 4 << 20
    assert arena_bytes_of("no such line") is None


def test_pythons_arenas_grow_with_small_objects() -> None:
    """In a fresh interpreter: this one may have room left from earlier tests."""
    code = """
from benchmarks.edge_harness.measure.malloc_stats import python_arena_bytes
before = python_arena_bytes()
kept = [(number,) for number in range(200_000)]
print(python_arena_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 4 << 20
