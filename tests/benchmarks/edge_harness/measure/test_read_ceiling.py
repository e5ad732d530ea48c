"""The read ceiling's buffer and its figures."""

from __future__ import annotations

import psutil
import pytest

from benchmarks.edge_harness.measure import read_ceiling
from benchmarks.edge_harness.measure.read_ceiling import ReadCeiling, buffer_bytes, ceiling_record
from vllm_omni import monitor
from vllm_omni.errors import OmniError


def test_the_buffer_is_several_caches_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ceiling, "last_level_cache_bytes", lambda: 1 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 100 << 30}))
    assert buffer_bytes() == 4 << 30
    monkeypatch.setattr(read_ceiling, "last_level_cache_bytes", lambda: None)
    assert buffer_bytes() == 256 << 20


def test_a_buffer_that_the_memory_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 100 << 20}))
    with pytest.raises(OmniError, match="a buffer of 268 MB, expected at most half of the 105 MB"):
        buffer_bytes(256 << 20)


def test_every_pass_reads_the_whole_buffer_and_no_anonymous_memory_is_taken() -> None:
    size = 40 << 20
    # What the first call brings along is not the buffer's.
    with ReadCeiling(1 << 20) as ceiling:
        ceiling.samples_gbps(1)
    before = monitor.process_memory(pss=False)
    with ReadCeiling(size) as ceiling:
        rates = ceiling.samples_gbps(3)
        held = monitor.process_memory(pss=False)
    after = monitor.process_memory(pss=False)
    assert len(rates) == 3
    assert min(rates) > 0
    assert held.rss_anon_bytes - before.rss_anon_bytes < 8 << 20
    assert held.rss_shmem_bytes - before.rss_shmem_bytes >= size
    assert after.rss_shmem_bytes - before.rss_shmem_bytes < 1 << 20


def test_the_record_says_how_even_it_was() -> None:
    record = ceiling_record([10.0, 30.0, 20.0], 268_000_000)
    assert record == {
        "ceiling_gbps": 20.0,
        "ceiling_gbps_best": 30.0,
        "ceiling_gbps_worst": 10.0,
        "buffer_mb": 268.0,
    }
