"""Pages of this process, from words of a page map."""

from __future__ import annotations

import io
import mmap
import tempfile

import numpy as np

from benchmarks.edge_harness.measure.page_residency import (
    PAGE_BYTES,
    Pagemap,
    Residency,
    decode,
    merged_pages,
)

PRESENT, SWAPPED, OF_FILE = 1 << 63, 1 << 62, 1 << 61


def test_what_the_bits_say() -> None:
    words = np.array([0, PRESENT, PRESENT | OF_FILE, SWAPPED, PRESENT | 12345], dtype=np.uint64)
    assert decode(words) == Residency(2 * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES)


def test_ranges_touch_whole_pages_and_each_page_once() -> None:
    page = PAGE_BYTES
    assert merged_pages([(page - 1, 2), (0, 1), (5 * page, page), (7 * page, 0)]) == [(0, 2), (5, 6)]


def test_a_page_counts_for_the_first_who_asks() -> None:
    page = PAGE_BYTES
    words = np.full(10, PRESENT, dtype=np.uint64)
    with Pagemap(io.BytesIO(words.tobytes())) as pagemap:
        assert pagemap.residency([(2 * page, 3 * page)]).anonymous_bytes == 3 * page
        assert pagemap.residency([(0, 10 * page)]).anonymous_bytes == 7 * page
        assert pagemap.residency([(4 * page, page)]).anonymous_bytes == 0


def test_own_memory_is_resident_once_it_was_written() -> None:
    size = 64 * PAGE_BYTES
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    with Pagemap() as pagemap:
        assert pagemap.residency([(address, size)]).resident_bytes == 0
    memory[: 16 * PAGE_BYTES] = b"x" * (16 * PAGE_BYTES)
    with Pagemap() as pagemap:
        assert pagemap.residency([(address, size)]) == Residency(16 * PAGE_BYTES, 0, 0)


def test_a_mapped_file_is_no_anonymous_memory() -> None:
    size = 8 * PAGE_BYTES
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * size)
        file.flush()
        memory = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    view = np.frombuffer(memory, dtype=np.uint8)
    assert int(view.sum()) > 0
    with Pagemap() as pagemap:
        found = pagemap.residency([(view.ctypes.data, size)])
    assert found.anonymous_bytes == 0
    assert found.file_bytes == size
