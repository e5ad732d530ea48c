"""A measurement in a fresh process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.edge_harness.measure.fresh_process import last_record, measure_in_fresh_process
from vllm_omni.errors import OmniError


def run(program: str, timeout_s: float = 60.0) -> dict[str, object]:
    return measure_in_fresh_process([sys.executable, "-c", program], "a title", timeout_s=timeout_s)


def test_the_last_line_is_the_record() -> None:
    assert run("print('{}'); print('{\"tg_tps\": 2.5}'); print()") == {"tg_tps": 2.5}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('error: too long')", "a title: exit code 1: too long"),
        ("print('no record')", "expected a JSON object as the last line of its output, found no record"),
        ("pass", "found nothing"),
        ("print('[1]')", r"found \[1\]"),
    ],
)
def test_a_failure_is_one_line(program: str, message: str) -> None:
    with pytest.raises(OmniError, match=message):
        run(program)


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(OmniError, match="not finished in 0 s"):
        run("input = __import__('time').sleep(600)", timeout_s=0.2)


def test_a_watch_sees_the_process_from_its_start_to_before_it_is_reaped() -> None:
    seen: list[tuple[str, bool]] = []

    @contextmanager
    def watch(pid: int) -> Iterator[None]:
        seen.append(("started", Path(f"/proc/{pid}").exists()))
        yield
        # Ended, and its number is not free yet.
        seen.append((psutil.Process(pid).status(), Path(f"/proc/{pid}").exists()))

    command = [sys.executable, "-c", "print('{}')"]
    assert measure_in_fresh_process(command, "t", watch=watch) == {}
    assert seen == [("started", True), (psutil.STATUS_ZOMBIE, True)]


def test_records_are_objects() -> None:
    assert last_record('{"a": 1}\n\n', "t") == {"a": 1}
