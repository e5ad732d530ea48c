"""A measurement in a fresh process: its record, with its log kept apart and shown when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from vllm_omni.errors import OmniError

REPOSITORY = Path(__file__).resolve().parents[3]
_TAIL_LINES = 12


def program(module: str, *arguments: str) -> list[str]:
    """The command line of one of the harness's own programs."""
    return [sys.executable, "-m", f"benchmarks.edge_harness.measure.{module}", *arguments]


def measure_in_fresh_process(
    command: Sequence[str],
    title: str,
    *,
    timeout_s: float = 3600.0,
    console: Console | None = None,
    watch: Callable[[int], AbstractContextManager[object]] = contextlib.nullcontext,
) -> dict[str, Any]:
    """Run ``command`` in the repository's root and return the JSON object of its last line. ``watch`` is
    entered with its pid when it has started, and left when it has ended and the pid is still its own.

    Raises :class:`OmniError` with the last line that the program logged when it fails; the process has ended
    by then, also on Ctrl-C.
    """
    console = console or Console(stderr=True, highlight=False)
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as log, tempfile.TemporaryFile("w+b") as out:
        with console.status(title):
            process = subprocess.Popen(
                list(command), cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=out, stderr=log
            )
            try:
                with watch(process.pid):
                    if not wait_unreaped(process.pid, timeout_s):
                        raise OmniError(f"{title}: not finished in {timeout_s:.0f} s")
            finally:
                process.kill()
                process.wait()
        log.seek(0)
        logged = log.read().splitlines()
        out.seek(0)
        printed = out.read().decode(errors="replace")
    if process.returncode != 0:
        for line in logged[-_TAIL_LINES:]:
            console.print(line, markup=False, style="dim")
        last = next((line for line in reversed(logged) if line.strip()), "it logged nothing")
        raise OmniError(f"{title}: exit code {process.returncode}: {last.removeprefix('error: ').strip()}")
    console.print(f"{title}: {time.monotonic() - start:.1f} s", style="green")
    return last_record(printed, title)


def wait_unreaped(pid: int, timeout_s: float) -> bool:
    """Wait for the end of the child ``pid`` and leave it to be reaped; whether it came within the time."""
    descriptor = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        return bool(ready)
    finally:
        os.close(descriptor)


def last_record(text: str, title: str) -> dict[str, Any]:
    """The JSON object of the last line that is not empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        record = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        record = None
    if not isinstance(record, dict):
        found = lines[-1][:80] if lines else "nothing"
        raise OmniError(f"{title}: expected a JSON object as the last line of its output, found {found}")
    return record
