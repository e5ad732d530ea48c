"""One run: a fresh process in a session of its own, pinned, watched, and ended with all that it started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.edge_harness.grid import leftovers
from benchmarks.edge_harness.grid.cores import Placement
from benchmarks.edge_harness.grid.library_watch import LibrariesSeen, LibraryWatch
from benchmarks.edge_harness.grid.monitors import (
    CoresSeen,
    CoreWatch,
    MemorySeen,
    MemoryWatch,
    Monitors,
)
from benchmarks.edge_harness.grid.stops import stops_ignored
from benchmarks.edge_harness.provenance.load import now_utc
from vllm_omni import monitor, settings

OUTLIVED_GRACE_S = 0.5

_STDERR_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Child:
    """What to start. ``environment`` is the whole of it; ``folder`` takes its output."""

    command: Sequence[str]
    environment: dict[str, str]
    placement: Placement
    timeout_s: float
    token: str
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """``problem``: why the process did not end with exit code 0 by itself. ``outlived``: names of processes
    that were still there when the program had ended, and were ended."""

    started_utc: str
    wall_s: float
    exit_code: int | None
    problem: str | None
    stdout: Path
    stderr_tail: str | None
    cpu_s: float
    memory: MemorySeen = field(default_factory=MemorySeen)
    cores: CoresSeen = field(default_factory=CoresSeen)
    libraries: LibrariesSeen = field(default_factory=LibrariesSeen)
    outlived: list[str] = field(default_factory=list)
    memory_problem: str | None = None


def run_child(
    child: Child,
    monitors: Monitors,
    started: Callable[[int], None] = lambda pid: None,
    starting: Callable[[], None] = lambda: None,
) -> Outcome:
    """Start ``child`` and wait for its end or its time limit. ``starting`` is called before there is a
    process, ``started`` is told its pid.

    Whatever interrupts the wait ends the child first.
    """
    child.folder.mkdir(parents=True, exist_ok=True)
    stdout, stderr = child.folder / "stdout", child.folder / "stderr"
    # An output of the run before must not pass for this one's, should it not start.
    stdout.unlink(missing_ok=True)
    started_utc = now_utc()
    begin_ns = time.monotonic_ns()
    spawn = _Spawn(child, stdout, stderr)
    watches: list[MemoryWatch | CoreWatch | LibraryWatch] = []
    try:
        starting()
        spawn.run()
        if spawn.process is None:
            return Outcome(
                started_utc=started_utc,
                wall_s=0.0,
                exit_code=None,
                problem=f"could not start {child.command[0]}: {spawn.error}",
                stdout=stdout,
                stderr_tail=None,
                cpu_s=0.0,
                memory_problem=spawn.memory_problem,
            )
        process = spawn.process
        watches.append(memory := monitors.memory(process.pid))
        watches.append(cores := monitors.cores(child.placement.cores, process.pid))
        watches.append(libraries := LibraryWatch(process.pid))
        started(process.pid)
        in_time = _wait(process.pid, child.timeout_s - (time.monotonic_ns() - begin_ns) / 1e9)
        wall_s = (time.monotonic_ns() - begin_ns) / 1e9
        # Not reaped yet: the pid cannot be another's while it is read and its session is ended.
        seen_cores, seen_memory, seen_libraries = cores.stop(), memory.stop(), libraries.stop()
        watches.clear()
        ended = leftovers.end(process.pid, child.token, OUTLIVED_GRACE_S if in_time else leftovers.GRACE_S)
    except BaseException:
        # A second Ctrl-C would leave behind what the first one is ending.
        with stops_ignored():
            if spawn.thread.ident is not None:
                spawn.thread.join()
            for watch in watches:
                watch.stop()
            leftovers.end(spawn.process.pid if spawn.process else None, child.token)
            if spawn.process:
                spawn.process.wait()
        raise
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    exit_code = process.returncode if in_time else None
    tail = _tail(stderr)
    return Outcome(
        started_utc=started_utc,
        wall_s=wall_s,
        exit_code=exit_code,
        problem=_problem(exit_code, child.timeout_s, tail),
        stdout=stdout,
        stderr_tail=tail,
        # The kernel's account lacks children that nobody waited for, the samples what ended between two.
        cpu_s=max(usage.ru_utime + usage.ru_stime, seen_memory.cpu_s),
        memory=seen_memory,
        cores=seen_cores,
        libraries=seen_libraries,
        outlived=ended if in_time else [],
        memory_problem=spawn.memory_problem,
    )


@contextmanager
def beside(cores: Sequence[int]) -> Iterator[bool]:
    """Keep this thread, and those that it starts, off ``cores`` as long as there are others; whether there
    were."""
    before = os.sched_getaffinity(0)
    others = before - set(cores)
    if others:
        os.sched_setaffinity(0, others)
    try:
        yield bool(others)
    finally:
        os.sched_setaffinity(0, before)


def child_environment(*additions: dict[str, str]) -> dict[str, str]:
    """This process's environment and ``additions``, later ones last. ``python`` is
    this interpreter, whether or not its environment is activated."""
    environment = settings.inherited()
    folders = [str(Path(sys.executable).parent), environment.get("PATH") or os.defpath]
    environment["PATH"] = os.pathsep.join(folders)
    for addition in additions:
        environment.update(addition)
    return environment


class _Spawn:
    """Starts the process from a thread that exists for this alone: affinity and memory policy belong to a
    thread, and a new process takes those of the thread that starts it."""

    def __init__(self, child: Child, stdout: Path, stderr: Path) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.memory_problem: str | None = None
        self.error: str | None = None
        self._child, self._stdout, self._stderr = child, stdout, stderr
        self.thread = threading.Thread(target=self._start, name="spawn")

    def run(self) -> None:
        self.thread.start()
        self.thread.join()

    def _start(self) -> None:
        placement = self._child.placement
        try:
            os.sched_setaffinity(0, placement.cores)
            if placement.bind_memory and placement.memory_nodes:
                try:
                    monitor.bind_memory_to_nodes(list(placement.memory_nodes))
                except OSError as error:
                    self.memory_problem = f"memory is not bound to the cores' node: {error.strerror or error}"
            with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
                self.process = subprocess.Popen(
                    self._child.command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=self._child.environment | {leftovers.TOKEN_VARIABLE: self._child.token},
                    start_new_session=True,
                )
        except OSError as error:
            self.error = error.strerror or str(error)
        except ValueError as error:
            self.error = str(error)


def _wait(pid: int, timeout_s: float) -> bool:
    """Wait for the end of ``pid`` without reaping it; whether it came within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0:
            # A longer wait does not fit the system call's integer.
            if poll.poll(min(left_s, 1e6) * 1000):
                return True
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)


def _problem(exit_code: int | None, timeout_s: float, stderr: str | None) -> str | None:
    if exit_code is None:
        return f"killed after the time limit of {timeout_s:g} s"
    if exit_code == 0:
        return None
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        cause = ", as the kernel does when memory runs out" if -exit_code == signal.SIGKILL else ""
        return f"killed by {name}{cause}"
    lines = [line for line in (stderr or "").splitlines() if line.strip()]
    return f"exit code {exit_code}" + (f": {lines[-1].strip()}" if lines else "")


def _tail(path: Path) -> str | None:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _STDERR_TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace") or None
