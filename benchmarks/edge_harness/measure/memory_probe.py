"""Memory of a process tree, watched from outside: of an engine through its phases, or of any process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.edge_harness.measure.fresh_process import REPOSITORY
from benchmarks.edge_harness.measure.memory_marks import COUNTERS, MB, MemoryMarks
from benchmarks.edge_harness.measure.process_age import process_age_s
from vllm_omni import monitor
from vllm_omni.errors import OmniError

LOOK_INTERVAL_S = 0.1


def probe_command(
    command: Sequence[str],
    *,
    on_phase: Callable[[str], None],
    watch: Callable[[int], AbstractContextManager[object]] = contextlib.nullcontext,
    timeout_s: float = 3600.0,
) -> dict[str, Any]:
    """Start ``command``, a program that announces phases as :mod:`memory_child` does, and watch its tree.
    ``watch`` is entered with its pid and left before the pid can be another's.

    Raises :class:`OmniError` with its last logged line when it fails; it has ended by then."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            process = subprocess.Popen(
                list(command),
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        except OSError as error:
            raise OmniError(f"memory-probe: {command[0]}: {error.strerror}") from None
        # Its end ends the loop that reads its phases.
        ran_out = threading.Event()

        def end() -> None:
            ran_out.set()
            process.kill()

        deadline = threading.Timer(timeout_s, end)
        deadline.start()
        try:
            with watch(process.pid):
                record, marks = _watch(process, on_phase)
            process.wait()
        finally:
            deadline.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
        if ran_out.is_set():
            raise OmniError(f"memory-probe: not finished in {timeout_s:g} s")
        log.seek(0)
        lines = [line for line in log.read().splitlines() if line.strip()]
    if process.returncode != 0 or record is None:
        last = lines[-1].removeprefix("error: ") if lines else "it logged nothing"
        raise OmniError(f"memory-probe: the engine ended with exit code {process.returncode}: {last}")
    settled = "after warm-up"
    at_context = "at context" if "at context" in marks.trees else None
    notes = list(record.pop("notes", []))
    return record | marks.metrics(settled, at_context) | marks.record() | {"notes": notes}


def _watch(
    process: subprocess.Popen[str], on_phase: Callable[[str], None]
) -> tuple[dict[str, Any] | None, MemoryMarks]:
    assert process.stdin is not None
    assert process.stdout is not None
    marks = MemoryMarks(process.pid, lambda: process_age_s(process.pid))
    record = None
    with marks:
        for line in process.stdout:
            try:
                message = json.loads(line)
            except json.JSONDecodeError:
                raise OmniError(f"memory-probe: expected a phase or a record, found {line[:80]!r}") from None
            if set(message) != {"phase"}:
                record = message
                continue
            marks.mark(message["phase"])
            on_phase(message["phase"])
            try:
                process.stdin.write("\n")
                process.stdin.flush()
            except BrokenPipeError:
                # It has ended: its exit code and its log say why.
                break
    after = marks.trees.get("after trim")
    if record is not None and after is not None:
        record["rss_anon_after_trim_mb"] = after.rss_anon_bytes / MB
    return record, marks


def probe_pid(
    pid: int,
    seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Watch process ``pid`` and its descendants for ``seconds``, or until it ends.

    Raises :class:`OmniError` when there is no such process, or it may not be read."""
    identity = identity_of(pid)
    marks = MemoryMarks(pid, lambda: process_age_s(pid), identity)
    try:
        marks.mark("first look")
    except ProcessLookupError:
        raise OmniError(_no_process(pid)) from None
    except PermissionError:
        raise OmniError(f"--pid {pid}: its memory may not be read by this user") from None
    start = clock()
    with marks:
        while clock() - start < seconds and is_same(pid, identity):
            sleep(min(LOOK_INTERVAL_S, seconds))
        # The last look costs milliseconds per GiB; whoever ends meanwhile has none.
        with contextlib.suppress(ProcessLookupError):
            if is_same(pid, identity):
                marks.mark("last look")
    watched_s = clock() - start
    ended = "last look" not in marks.trees
    notes = ["the context of an engine that is watched from outside is whatever its clients have filled"]
    if ended:
        notes.append(
            f"process {pid} ended after {watched_s:.1f} s: the figures are of the last sample, Pss_Anon of "
            "the first look"
        )
    record: dict[str, Any] = dict(marks.metrics_of(marks.trees["first look" if ended else "last look"]))
    if ended:
        record |= marks.last_sample()
    record |= marks.record()
    record["counters"] = {name: text.replace(", after the warm-up", "") for name, text in COUNTERS.items()}
    return record | {"pid": pid, "watched_s": watched_s, "ended": ended, "notes": notes}


def identity_of(pid: int) -> int:
    """When process ``pid`` began, which tells it from a later one of the same number. Raises
    :class:`OmniError` when there is none."""
    try:
        return monitor.process_start_ticks(pid)
    except ProcessLookupError:
        raise OmniError(_no_process(pid)) from None


def _no_process(pid: int) -> str:
    return f"--pid {pid}: expected a running process, found none"


def is_same(pid: int, identity: int) -> bool:
    """Whether process ``pid`` is still the one that began at ``identity``."""
    try:
        return monitor.process_start_ticks(pid) == identity
    except ProcessLookupError:
        return False
