"""Which pages of this process are resident, and whether as its own memory or as a file's.

``/proc/self/pagemap`` says of every page of *this process* whether it is mapped and whether it belongs to a
file or to shared memory (bit 61). ``mincore`` would answer for the page cache: a page that another process
has read counts as resident there.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Self

import numpy as np

PAGE_BYTES = mmap.PAGESIZE
_ENTRY_BYTES = 8
_PRESENT = np.uint64(1 << 63)
_SWAPPED = np.uint64(1 << 62)
_OF_FILE = np.uint64(1 << 61)


@dataclass(frozen=True)
class Residency:
    """Bytes of whole pages."""

    anonymous_bytes: int = 0
    file_bytes: int = 0
    swapped_bytes: int = 0

    @property
    def resident_bytes(self) -> int:
        return self.anonymous_bytes + self.file_bytes

    def __add__(self, other: Residency) -> Residency:
        return Residency(
            self.anonymous_bytes + other.anonymous_bytes,
            self.file_bytes + other.file_bytes,
            self.swapped_bytes + other.swapped_bytes,
        )


def merged_pages(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Page numbers ``[first, end)`` that address ranges ``(start, bytes)`` touch, each page once."""
    pages = sorted(
        (start // PAGE_BYTES, -(-(start + size) // PAGE_BYTES)) for start, size in ranges if size > 0
    )
    merged: list[tuple[int, int]] = []
    for first, end in pages:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged


def decode(entries: np.ndarray) -> Residency:
    """Of ``uint64`` words of a pagemap."""
    present = (entries & _PRESENT) != 0
    of_file = (entries & _OF_FILE) != 0
    swapped = (entries & _SWAPPED) != 0
    return Residency(
        int((present & ~of_file).sum()) * PAGE_BYTES,
        int((present & of_file).sum()) * PAGE_BYTES,
        int(swapped.sum()) * PAGE_BYTES,
    )


class Pagemap:
    """Reads ``pagemap``; pages that were counted are not counted again by the same object."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        # Opened here when not given: a test gives its own words.
        self._file = file if file is not None else open("/proc/self/pagemap", "rb", buffering=0)  # noqa: SIM115
        self._counted: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def residency(self, ranges: Iterable[tuple[int, int]]) -> Residency:
        """Of the pages of ``ranges`` that no earlier call counted."""
        total = Residency()
        for first, end in self._uncounted(merged_pages(ranges)):
            self._file.seek(first * _ENTRY_BYTES)
            words = self._file.read((end - first) * _ENTRY_BYTES)
            total += decode(np.frombuffer(words, dtype=np.uint64))
        return total

    def _uncounted(self, pages: list[tuple[int, int]]) -> list[tuple[int, int]]:
        fresh = []
        for first, end in pages:
            at = first
            for seen_first, seen_end in self._counted:
                if seen_end <= at or seen_first >= end:
                    continue
                if seen_first > at:
                    fresh.append((at, seen_first))
                at = max(at, seen_end)
            if at < end:
                fresh.append((at, end))
        covered = [
            (first * PAGE_BYTES, (end - first) * PAGE_BYTES) for first, end in (*self._counted, *pages)
        ]
        self._counted = merged_pages(covered)
        return fresh
