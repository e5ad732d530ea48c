"""A process's age from the kernel's record."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.edge_harness.measure.process_age import process_age_s, start_ticks, start_ticks_of


def test_names_with_parentheses_and_spaces_do_not_shift_the_fields() -> None:
    fields = " ".join(str(n) for n in range(4, 53))
    assert start_ticks(f"42 (a) (b c) S {fields}") == 22


def test_an_older_process_has_fewer_ticks_and_more_age() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert start_ticks_of(os.getpid()) <= start_ticks_of(child.pid)
        assert 0 <= process_age_s(child.pid) < process_age_s()
    finally:
        child.communicate(b"\n")


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(OSError, match="No such"):
        process_age_s(2**22 + 1)
