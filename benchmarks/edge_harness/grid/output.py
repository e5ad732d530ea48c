"""What a program reports: the last JSON object on its standard output.

An object counts when it begins a line; programs and the libraries under them print other things before, after
and on lines of their own. An object that is cut off at the end of the output is an error rather than a
reason to take an earlier or an inner one.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.metrics import SAMPLED, is_bookkeeping

# A program that floods its output must not fill the harness's memory; the object is at the end.
LONGEST_OUTPUT_BYTES = 64 << 20

# Keys with a meaning of their own, never metrics.
RESERVED = frozenset({"verification", "ran", "kernels", "model", "peer", "phases", "samples", "notes"})

_OBJECT_START = re.compile(r"^[ \t]*\{", re.MULTILINE)


class _CutOff(ValueError):
    pass


@dataclass(frozen=True)
class Output:
    """``problem`` says why there is no ``reported``. Numbers that are not finite are kept as their names."""

    reported: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    cut_off: bool = False
    """The program began to report and did not end it, which spoils what was sampled of it too."""

    @property
    def metrics(self) -> dict[str, float]:
        """Numeric top-level values but for bookkeeping. ``sampled.*`` is the harness's and cannot be
        reported."""
        return {
            name: float(value)
            for name, value in self.reported.items()
            if _is_number(value)
            and name not in RESERVED
            and not name.startswith(SAMPLED)
            and not is_bookkeeping(name)
        }


def read_output(path: Path) -> Output:
    """The last JSON object of the file, of which the last :data:`LONGEST_OUTPUT_BYTES` are read."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LONGEST_OUTPUT_BYTES))
        return parse_output(file.read().decode("utf-8", errors="replace"))


def parse_output(text: str) -> Output:
    """The last JSON object of ``text``."""
    # A progress bar returns to the start of its line, which is then the object's.
    text = text.replace("\r", "\n")
    last: dict[str, Any] | None = None
    # Where what could not be read began in its line: whatever is indented further may be a part of it.
    outer: int | None = None
    position = 0
    while (start := _OBJECT_START.search(text, position)) is not None:
        begin = start.end() - 1
        indent = begin - start.start()
        try:
            value, position = _decode(text, begin)
        except _CutOff:
            return Output(problem="the last JSON object on standard output is cut off", cut_off=True)
        except json.JSONDecodeError as error:
            # Up to there it was an object: no other begins inside, and nothing is read twice.
            position = max(begin + 1, error.pos)
            outer = indent if outer is None else min(outer, indent)
            continue
        except (ValueError, RecursionError):
            position = begin + 1
            outer = indent if outer is None else min(outer, indent)
            continue
        if outer is None or indent <= outer:
            last, outer = value, None
    if last is None:
        return Output(problem="no JSON object on standard output")
    return Output(last)


def _decode(text: str, begin: int) -> tuple[dict[str, Any], int]:
    try:
        return _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        # Every character up to the end was the beginning of an object.
        if error.msg.startswith("Unterminated string") or not text[error.pos :].strip():
            raise _CutOff from error
        raise


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


_DECODER = json.JSONDecoder(parse_constant=str, parse_float=_float)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
