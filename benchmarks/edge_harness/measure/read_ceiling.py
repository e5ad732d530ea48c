"""How fast this process can read memory: the measure of a decode step.

The buffer is several times as large as the last-level cache, and its pages belong to an anonymous file, so
they are shared memory: the RssAnon of the process stays what it was.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from types import TracebackType
from typing import Self

import psutil

from benchmarks.edge_harness.provenance.machine import last_level_cache_bytes
from vllm_omni.errors import OmniError

CACHE_MULTIPLE = 4
MINIMUM_BYTES = 256 << 20
MOST_OF_AVAILABLE_MEMORY = 0.5
PASSES = 5


def buffer_bytes(wanted: int | None = None) -> int:
    """Bytes of the buffer: ``wanted``, or four times the last-level cache. Raises :class:`OmniError` where
    the machine has not twice that to spare."""
    size = wanted or max(MINIMUM_BYTES, CACHE_MULTIPLE * (last_level_cache_bytes() or 0))
    available = psutil.virtual_memory().available
    if size > MOST_OF_AVAILABLE_MEMORY * available:
        raise OmniError(
            f"read ceiling: a buffer of {size / 1e6:.0f} MB, expected at most half of the "
            f"{available / 1e6:.0f} MB that are available"
        )
    return size


class ReadCeiling:
    """A buffer and :meth:`gbps` on torch's threads. Leave it to give the memory back."""

    def __init__(self, nbytes: int | None = None) -> None:
        from vllm_omni import ops

        status = ops.status()
        if not status.native:
            raise OmniError(f"the read ceiling needs the native library: {status.reason}")
        self.nbytes = buffer_bytes(nbytes)
        descriptor = os.memfd_create("read-ceiling")
        try:
            os.ftruncate(descriptor, self.nbytes)
            self._memory = mmap.mmap(descriptor, self.nbytes)
        finally:
            os.close(descriptor)
        chunk = bytes(range(256)) * (4 << 10)
        for start in range(0, self.nbytes, len(chunk)):
            self._memory[start : start + len(chunk)] = chunk[: self.nbytes - start]

    @property
    def cache_multiple(self) -> float | None:
        cache = last_level_cache_bytes()
        return self.nbytes / cache if cache else None

    def samples_gbps(self, passes: int = PASSES) -> list[float]:
        """Rates of ``passes`` passes over the buffer, after one that is not counted."""
        from vllm_omni import _rust

        rates = []
        for number in range(passes + 1):
            start = time.perf_counter()
            _rust.read_ceiling(self._memory)
            if number:
                rates.append(self.nbytes / (time.perf_counter() - start) / 1e9)
        return rates

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()


def ceiling_record(samples: list[float], nbytes: int) -> dict[str, object]:
    """What a record says of its ceiling: the median, because a decode step sees the usual rate, not the
    best."""
    return {
        "ceiling_gbps": statistics.median(samples),
        "ceiling_gbps_best": max(samples),
        "ceiling_gbps_worst": min(samples),
        "buffer_mb": nbytes / 1e6,
    }
