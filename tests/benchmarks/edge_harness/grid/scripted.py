"""Arms that are scripts of a few lines, and monitors that see what a test says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.artifact.schema import Run
from benchmarks.edge_harness.grid.cores import Placement, place
from benchmarks.edge_harness.grid.journal import Entry, Seen
from benchmarks.edge_harness.grid.monitors import CoreLoad, CoresSeen, MemorySeen, OccupancySeen


class Watch:
    def __init__(self, seen: Any, stopped: list[Any]) -> None:
        self._seen, self._stopped = seen, stopped

    def stop(self) -> Any:
        self._stopped.append(self._seen)
        return self._seen


class ScriptedMonitors:
    """``busy``: what others take of every core."""

    def __init__(
        self, memory: MemorySeen | None = None, cores: CoresSeen | None = None, busy: float = 0.0
    ) -> None:
        self.memory_seen, self.cores_seen, self.busy = memory or MemorySeen(), cores or CoresSeen(), busy
        self.stopped: list[Any] = []

    def memory(self, pid: int) -> Watch:
        return Watch(self.memory_seen, self.stopped)

    def cores(self, cores: Sequence[int], pid: int) -> Watch:
        return Watch(self.cores_seen, self.stopped)

    def occupancy(self, cores: Sequence[int], window_s: float, own_pids: Sequence[int]) -> OccupancySeen:
        processes = ((1, "somebody", core, self.busy) for core in cores)
        return OccupancySeen(
            {core: CoreLoad(self.busy, 0.0) for core in cores}, tuple(processes) if self.busy else ()
        )


def here() -> Placement:
    """The first core that this process may use."""
    placement = place(None)
    return Placement(placement.cores[:1], placement.memory_nodes, False, None)


def python(code: str) -> list[str]:
    """A command that starts in a few milliseconds."""
    return [sys.executable, "-I", "-S", "-c", code]


def script(folder: Path, name: str, code: str) -> list[str]:
    file = folder / name
    file.write_text(code)
    return [sys.executable, "-I", "-S", str(file)]


def entry(tag: str, pass_no: int, **changes: Any) -> Entry:
    values: dict[str, Any] = {
        "tag": tag,
        "pass_no": pass_no,
        "position": 1,
        "cold_cache": False,
        "started_utc": "2026-01-01T00:00:00+00:00",
        "wall_s": 1.0,
        "exit_code": 0,
        "status": "ok",
        "reason": None,
        "metrics": {"m": 1.0},
        "reported": {"m": 1.0},
        "verification": None,
        "disturbance": None,
        "load_before": [0.0, 0.0, 0.0],
        "load_after": [0.0, 0.0, 0.0],
        "memory": [],
        "phases": [],
        "stderr_tail": None,
    }
    return Entry(run=Run.model_validate(values | changes), seen=Seen())


# Leaves something in the compile cache, as an engine does.
COMPILES = """
import os, pathlib
(pathlib.Path(os.environ["VLLM_CACHE_ROOT"]) / "graph").touch()
"""
