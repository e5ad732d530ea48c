"""How many bytes of weights to rotate over, so that none is found in a cache."""

from __future__ import annotations

import psutil

from benchmarks.edge_harness.provenance.machine import last_level_cache_bytes
from vllm_omni.errors import OmniError

CACHE_MULTIPLE = 4
MINIMUM_BUFFER_BYTES = 256 << 20
MOST_OF_AVAILABLE_MEMORY = 0.6


def buffer_bytes(wanted_mib: int | None, allow_cached: bool, copies: int = 1) -> int:
    """Bytes to rotate over, in each of ``copies`` buffers. Raises :class:`OmniError` when they fit the cache,
    or all do not fit the memory."""
    cache = last_level_cache_bytes()
    enough = max(MINIMUM_BUFFER_BYTES, CACHE_MULTIPLE * (cache or 0))
    size = enough if wanted_mib is None else wanted_mib << 20
    if size < enough and not allow_cached:
        least = f"{-(-enough >> 20)} ({CACHE_MULTIPLE} x the last-level cache)"
        raise OmniError(f"--buffer-mib {size >> 20}: expected at least {least}, or --allow-cached")
    most = int(MOST_OF_AVAILABLE_MEMORY * psutil.virtual_memory().available) // copies
    if size > most:
        raise OmniError(
            f"--buffer-mib {size >> 20}: expected at most {most >> 20}, "
            f"{MOST_OF_AVAILABLE_MEMORY:.0%} of the available memory"
            + f" for {copies} buffers"
            * (copies > 1)
        )
    return size
