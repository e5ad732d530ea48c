"""One run: where it is put, how it ends, and that nothing of it stays. Children are scripts of a line or two
that end, or wait for what the test does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.edge_harness.grid import leftovers
from benchmarks.edge_harness.grid.child import Child, Outcome, beside, child_environment, run_child
from benchmarks.edge_harness.grid.cores import Placement
from benchmarks.edge_harness.grid.monitors import CoresSeen, MemorySeen
from tests.benchmarks.edge_harness.grid.scripted import ScriptedMonitors, here, python, script
from vllm_omni import monitor

FOREVER = "import signal; signal.pause()"


def run(folder: Path, command: list[str], *, timeout_s: float = 60, **options: Any) -> Outcome:
    values: dict[str, Any] = {
        "environment": child_environment(),
        "placement": here(),
        "timeout_s": timeout_s,
        "token": os.urandom(8).hex(),
        "folder": folder / "run",
    }
    monitors = options.pop("monitors", None) or ScriptedMonitors()
    started = options.pop("started", lambda pid: None)
    return run_child(Child(command=command, **(values | options)), monitors, started)


def is_gone(pid: int) -> bool:
    """Ended; where the parent of orphans does not wait for them they stay as zombies."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(file: Path) -> str:
    """What a child wrote to ``file``, in one piece."""
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.005)
    return file.read_text().strip()


def test_a_program_that_ends_well(tmp_path: Path) -> None:
    outcome = run(tmp_path, python("import sys; print('out'); print('err', file=sys.stderr)"))
    assert (outcome.exit_code, outcome.problem) == (0, None)
    assert outcome.stdout.read_text() == "out\n"
    assert outcome.stderr_tail == "err\n"
    assert outcome.cpu_s > 0
    assert 0 < outcome.wall_s < 60
    assert outcome.outlived == []


@pytest.mark.parametrize(
    ("code", "exit_code", "problem"),
    [
        ("raise SystemExit(3)", 3, "exit code 3"),
        ("raise ValueError('too big')", 1, "exit code 1: ValueError: too big"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "killed by SIGSEGV"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            -9,
            "killed by SIGKILL, as the kernel does when memory runs out",
        ),
    ],
)
def test_a_program_that_fails(tmp_path: Path, code: str, exit_code: int, problem: str) -> None:
    outcome = run(tmp_path, python(code))
    assert (outcome.exit_code, outcome.problem) == (exit_code, problem)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["no-such-program"], "could not start no-such-program: No such file or directory"),
        (["/"], "could not start /: Permission denied"),
        (["a\0b"], "could not start a\0b: embedded null byte"),
    ],
)
def test_a_program_that_cannot_start(tmp_path: Path, command: list[str], problem: str) -> None:
    outcome = run(tmp_path, command)
    assert (outcome.exit_code, outcome.problem, outcome.wall_s) == (None, problem, 0.0)


def test_a_program_over_its_time_limit_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that ignores the request to end, and one in a session of its own."""
    monkeypatch.setattr(leftovers, "GRACE_S", 0.2)
    pids: list[str] = []
    code = f"""
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
same, other = os.fork(), None
if same:
    other = os.fork()
    if other == 0:
        os.setsid()
if same and other:
    with open({str(tmp_path / "pids")!r}, "w") as file:
        file.write(f"{{os.getpid()}} {{same}} {{other}}\\n")
signal.pause()
"""

    # The limit has passed when all of them are there.
    def started(pid: int) -> None:
        pids.extend(wait_for(tmp_path / "pids").split())

    outcome = run(tmp_path, python(code), timeout_s=0.001, started=started)
    assert (outcome.exit_code, outcome.problem) == (None, "killed after the time limit of 0.001 s")
    assert outcome.outlived == []
    assert len(pids) == 3
    assert all(is_gone(int(pid)) for pid in pids)


@pytest.mark.parametrize("leave", ["pass", "os.setsid()"])
def test_what_outlives_the_program_is_ended_and_named(tmp_path: Path, leave: str) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
import os, signal
if os.fork() == 0:
    {leave}
    if os.fork() == 0:
        with open({str(pid_file)!r}, "w") as file:
            file.write(f"{{os.getpid()}}\\n")
        signal.pause()
    os._exit(0)
while not os.path.exists({str(pid_file)!r}):
    pass
print("{{}}")
"""
    outcome = run(tmp_path, python(code))
    assert (outcome.exit_code, outcome.problem) == (0, None)
    assert len(outcome.outlived) == 1
    assert is_gone(int(wait_for(pid_file)))


def test_the_child_is_pinned_and_this_thread_is_not(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    outcome = run(tmp_path, python("import os; print(sorted(os.sched_getaffinity(0)))"))
    assert outcome.stdout.read_text().strip() == str(list(here().cores))
    assert os.sched_getaffinity(0) == before


def test_the_child_has_a_session_and_no_input(tmp_path: Path) -> None:
    outcome = run(
        tmp_path, python("import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))")
    )
    assert outcome.stdout.read_text() == "True ''\n"


def test_memory_is_bound_to_the_cores_node(tmp_path: Path) -> None:
    placement = here()
    assert placement.memory_nodes is not None
    bound = Placement(placement.cores, placement.memory_nodes, True, None)
    outcome = run(tmp_path, python("print(open('/proc/self/numa_maps').read())"), placement=bound)
    if outcome.memory_problem is None:
        nodes = ",".join(map(str, placement.memory_nodes))
        assert f" bind:{nodes} " in outcome.stdout.read_text()
    else:
        # A container may forbid it.
        assert outcome.memory_problem.startswith("memory is not bound to the cores' node: ")


def test_a_refused_binding_is_one_warning_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(nodes: list[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(monitor, "bind_memory_to_nodes", refuse)
    bound = Placement(here().cores, (0,), True, None)
    outcome = run(tmp_path, python("print(1)"), placement=bound)
    assert outcome.exit_code == 0
    assert outcome.memory_problem == "memory is not bound to the cores' node: Operation not permitted"


def test_what_the_monitors_saw_is_handed_on(tmp_path: Path) -> None:
    monitors = ScriptedMonitors(MemorySeen(peak_anon_bytes=7, cpu_s=1e6), CoresSeen(foreign=0.5))
    outcome = run(tmp_path, python(""), monitors=monitors)
    assert (outcome.memory.peak_anon_bytes, outcome.cores.foreign, outcome.cpu_s) == (7, 0.5, 1e6)
    assert len(monitors.stopped) == 2


def test_libraries_are_seen_from_outside(tmp_path: Path) -> None:
    """The name is what counts: here a copy of a library that is sure to be there."""
    import _ctypes

    copy = tmp_path / "libgomp-1234abcd.so.1"
    copy.write_bytes(Path(_ctypes.__file__).read_bytes())
    seen = tmp_path / "seen"
    code = f"""
import mmap, os, time
file = open({str(copy)!r}, "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
while not os.path.exists({str(seen)!r}):
    time.sleep(0.005)
"""
    looks: list[int] = []

    def look(pid: int) -> Any:
        from benchmarks.edge_harness.provenance.libraries import observed_libraries

        found = observed_libraries(pid)
        if found.openmp_runtimes:
            looks.append(pid)
            # What has been seen is kept, though the program ends at once.
            seen.touch()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.edge_harness.grid.library_watch.observed_libraries", look)
        outcome = run(tmp_path, script(tmp_path, "arm.py", code))
    assert outcome.libraries.openmp_runtimes == [copy.name]
    assert outcome.libraries.allocator == "glibc"
    assert looks
    assert outcome.libraries.own_cpu_s > 0


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_interrupts_the_wait_ends_the_child_first(tmp_path: Path, stop: type[BaseException]) -> None:
    pids: list[int] = []
    monitors = ScriptedMonitors()

    def interrupt(pid: int) -> None:
        pids.append(pid)
        raise stop

    with pytest.raises(stop):
        run(tmp_path, python(FOREVER), monitors=monitors, started=interrupt)
    assert is_gone(pids[0])
    assert len(monitors.stopped) == 2
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"spawn", "library-watch"}


def test_a_second_ctrl_c_does_not_stop_the_cleaning_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    end = leftovers.end

    def end_and_be_stopped(*arguments: Any) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return end(*arguments)

    def interrupt(pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(leftovers, "end", end_and_be_stopped)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, python(FOREVER), started=interrupt)
    assert is_gone(pids[0])


def test_where_threads_may_run_is_seen_from_outside(tmp_path: Path) -> None:
    assert run(tmp_path, python("")).libraries.allowed_cores == list(here().cores)


def test_what_stops_it_before_there_is_a_process_is_told_as_it_was(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    child = Child(python(FOREVER), child_environment(), here(), 60, os.urandom(8).hex(), tmp_path / "run")
    with pytest.raises(OSError, match="No space left"):
        run_child(child, ScriptedMonitors(), starting=full)


def test_a_long_error_output_keeps_its_end(tmp_path: Path) -> None:
    outcome = run(tmp_path, python("import sys; sys.stderr.write('x' * 100000 + 'end\\n'); sys.exit(1)"))
    assert outcome.stderr_tail is not None
    assert outcome.stderr_tail.endswith("end\n")
    assert len(outcome.stderr_tail) == 4096


def test_python_is_the_interpreter_of_the_harness(tmp_path: Path) -> None:
    import sys

    outcome = run(tmp_path, ["python", "-c", "import sys; print(sys.executable)"])
    assert Path(outcome.stdout.read_text().strip()).parent == Path(sys.executable).parent


def test_beside_keeps_this_thread_off_the_cores() -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    with beside([first]) as others:
        assert others == (len(before) > 1)
        assert os.sched_getaffinity(0) == (before - {first} or before)
    assert os.sched_getaffinity(0) == before
    with beside(sorted(before)) as others:
        assert not others
        assert os.sched_getaffinity(0) == before


def test_a_strangers_process_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(python(FOREVER), env={leftovers.TOKEN_VARIABLE: "another"})
    try:
        assert run(tmp_path, python("")).exit_code == 0
        assert stranger.poll() is None
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait()
