"""What else the machine is doing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

import psutil

from benchmarks.edge_harness.artifact.schema import Load
from vllm_omni import monitor


def now_utc() -> str:
    """This moment, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect_load(cores: Sequence[int] | None = None, window_s: float = 0.5) -> Load:
    """Load averages, available memory and, over ``window_s`` seconds, how busy ``cores`` are with the
    processes of others."""
    busy = None
    if cores:
        seen = monitor.occupancy(list(cores), window_s=window_s, own_pids=[os.getpid()])
        busy = {str(core): round(use.foreign, 4) for core, use in seen.cores.items()}
    return Load(
        time_utc=now_utc(),
        load_average=[round(value, 2) for value in os.getloadavg()],
        available_bytes=psutil.virtual_memory().available,
        busy_cores=busy,
    )
