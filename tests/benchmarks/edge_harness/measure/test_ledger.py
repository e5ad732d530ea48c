"""Arithmetic of the ledger."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

import numpy as np
import pytest

from benchmarks.edge_harness.measure.ledger import (
    RESIDUAL,
    TENSOR_ROLES,
    Entry,
    Snapshot,
    growth_entries,
    is_compiled,
    largest_mappings,
    ledger_record,
    rest_note,
    section_ranges,
    tensor_entries,
)
from benchmarks.edge_harness.measure.malloc_stats import MallocStats
from benchmarks.edge_harness.measure.page_residency import PAGE_BYTES, Pagemap
from vllm_omni.layout import HEADER_BYTES, Segment

MB = 1_000_000
PRESENT, OF_FILE = 1 << 63, 1 << 61
IMPORTED = Snapshot(300 * MB, MallocStats(100 * MB, 0, 10 * MB), 50 * MB, 0, 20 * MB)
SETTLED = Snapshot(700 * MB, MallocStats(180 * MB, 0, 90 * MB), 80 * MB, 3 * MB, 24 * MB)


def test_growth_since_the_import_is_split_by_who_holds_it() -> None:
    entries = growth_entries(IMPORTED, SETTLED, tensor_bytes=60 * MB, remaining_bytes=1000 * MB)
    assert {entry.name: entry.anonymous_mb for entry in entries} == pytest.approx(
        {
            "compiled code": 3,
            "libraries loaded since": 4,
            "Python objects": 30,
            # 80 in the heaps and 80 mapped, 60 of it tensors.
            RESIDUAL: 100,
        }
    )


def test_no_more_is_attributed_than_is_resident() -> None:
    entries = growth_entries(IMPORTED, SETTLED, tensor_bytes=60 * MB, remaining_bytes=40 * MB)
    assert sum(entry.anonymous_mb for entry in entries) == pytest.approx(40)
    native = entries[-1]
    assert native.anonymous_mb == pytest.approx(3)
    assert native.allocated_mb == pytest.approx(100)


def test_what_is_not_resident_is_said() -> None:
    capped = growth_entries(IMPORTED, SETTLED, tensor_bytes=60 * MB, remaining_bytes=40 * MB)
    assert rest_note(capped, 0.0).startswith("97.0 MB of native allocations")
    whole = growth_entries(IMPORTED, SETTLED, tensor_bytes=60 * MB, remaining_bytes=1000 * MB)
    assert rest_note([Entry("imports", 3.0, note="x"), *whole], 12.34).startswith("12.3 MB are unattributed")


def test_an_allocator_that_cannot_be_asked_leaves_the_rest_unattributed() -> None:
    mute = Snapshot(700 * MB, None, None, 3 * MB, 24 * MB)
    names = [entry.name for entry in growth_entries(IMPORTED, mute, 0, 1000 * MB)]
    assert names == ["compiled code", "libraries loaded since"]


def test_the_rest_is_shown() -> None:
    record = ledger_record([Entry("imports", 300.0), Entry("packed weights", 1.0, 99.0)], 350 * MB)
    assert record["rss_anon_tree_mb"] == 350
    assert record["unattributed_mb"] == pytest.approx(49)
    assert record["unattributed_share"] == pytest.approx(0.14)
    # Mapped pages are no part of the sum.
    assert record["mapped_mb"] == 99


def test_what_has_no_owner_is_shown_and_explains_nothing() -> None:
    record = ledger_record([Entry("imports", 300.0), Entry(RESIDUAL, 40.0)], 400 * MB)
    assert record["unattributed_mb"] == pytest.approx(60)
    assert record["unattributed_share"] == pytest.approx(0.15)
    assert record["unattributed_with_residual_mb"] == pytest.approx(100)
    assert record["unattributed_share_with_residual"] == pytest.approx(0.25)


def test_the_scales_of_a_packed_tensor_are_apart() -> None:
    first = Segment(n=32, k=64, bits=4, group_size=32, scale_type="f16", zero_kind="u8", permuted=True)
    second = replace(first, zero_kind="none", permuted=False, offset_bytes=first.nbytes)
    codes, scales = section_ranges([first, second])
    # A header, then half a byte for each of 32 x 64.
    assert codes == [(0, HEADER_BYTES + 1024), (first.nbytes, HEADER_BYTES + 1024)]
    # 64 scales of 2 bytes, 64 zeros, 64 columns of 4 bytes; then the scales alone.
    assert scales == [(HEADER_BYTES + 1024, 128 + 64 + 256), (first.nbytes + HEADER_BYTES + 1024, 128)]
    assert sum(size for _, size in codes + scales) == first.nbytes + second.nbytes


def test_tensors_count_by_their_resident_pages() -> None:
    page = PAGE_BYTES
    words = np.array([PRESENT | OF_FILE] * 4 + [PRESENT] * 3 + [0] * 5, dtype=np.uint64)
    ranges = {role: [] for role in TENSOR_ROLES} | {
        "packed weights": [(0, 4 * page)],
        "KV cache": [(4 * page, 8 * page)],
    }
    with Pagemap(io.BytesIO(words.tobytes())) as pagemap:
        entries, allocated = tensor_entries(ranges, pagemap)
    rows = {entry.name: entry for entry in entries}
    assert rows["packed weights"].anonymous_mb == 0
    assert rows["packed weights"].mapped_mb == pytest.approx(4 * page / MB)
    assert rows["KV cache"].anonymous_mb == pytest.approx(3 * page / MB)
    assert rows["KV cache"].allocated_mb == pytest.approx(8 * page / MB)
    # The mapped weights did not come from malloc.
    assert allocated == 8 * page


def test_kernels_of_the_compiler_are_known_by_their_folder() -> None:
    assert is_compiled("/x/torch_compile_cache/torch_aot_compile/ab/inductor_cache/cd/ef.so")
    assert not is_compiled("/usr/lib/libstdc++.so.6")


@dataclass
class FakeMapping:
    kind: str
    name: str
    anon_bytes: int
    rss_bytes: int


def test_mappings_are_shown_without_their_folders() -> None:
    found = largest_mappings(
        [FakeMapping("file", "/opt/x/lib.so", MB, 2 * MB), FakeMapping("heap", "[heap]", 9 * MB, 9 * MB)]
    )
    assert [row["name"] for row in found] == ["[heap]", "lib.so"]
