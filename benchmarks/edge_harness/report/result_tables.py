"""The tables within a probe's own record: lists of records, and records of records, however deep."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.edge_harness.report.figures import MISSING, figure

# Of a list of numbers its median is shown; what few numbers there are is shown whole.
_SHOWN_WHOLE = 4
# A table with more is data, not something to read; the file has it.
MOST_ROWS = 200


@dataclass(frozen=True)
class ResultTable:
    """``name``: where it is in the record, like ``paths.decode``. A cell is a number, a text or ``None``."""

    name: str
    headings: list[str]
    rows: list[list[float | int | str | None]]


def result_tables(result: Mapping[str, Any] | None) -> list[ResultTable]:
    """In the order of the record. Flat values of the record itself are the first, as name and value; its
    notes stand above everything already."""
    if not result:
        return []
    result = {name: value for name, value in result.items() if name != "notes"}
    flat = [[name, cell(value)] for name, value in result.items() if not _is_nested(value)]
    first = [ResultTable("result", ["name", "value"], flat)] if flat else []
    return first + list(_within("", result))


def as_table(name: str, records: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Records one a row, records within them by column (``weight.n``), lists of numbers as their median."""
    rows = [dict(_columns("", record)) for record in records]
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    return ResultTable(name, headings, [[row.get(heading) for heading in headings] for row in rows])


def cell(value: Any) -> float | int | str | None:
    """A value of a record in one cell."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(cell(item))}" for key, item in value.items()) or None
    values = list(value)
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(values) > _SHOWN_WHOLE and len(numbers) == len(values):
        return f"{figure(statistics.median(numbers))} (median of {len(numbers)})"
    return ", ".join(plain(cell(one)) for one in values) or None


def plain(value: float | int | str | None) -> str:
    """As it is read in a text."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else figure(value)


def _within(place: str, record: Mapping[str, Any]) -> Iterator[ResultTable]:
    for name, value in record.items():
        where = f"{place}.{name}" if place else str(name)
        if _is_records(value):
            if len(value) <= MOST_ROWS:
                yield as_table(where, value)
        elif isinstance(value, Mapping) and value:
            nested = [_is_nested(item) for item in value.values()]
            if not all(nested):
                flat = [[str(key), cell(item)] for key, item in value.items() if not _is_nested(item)]
                yield ResultTable(where, ["name", "value"], flat)
            if any(nested):
                yield from _within(where, value)


def _columns(place: str, record: Mapping[str, Any]) -> Iterator[tuple[str, float | int | str | None]]:
    for name, value in record.items():
        where = f"{place}.{name}" if place else str(name)
        if isinstance(value, Mapping) and value:
            yield from _columns(where, value)
        else:
            yield where, cell(value)


def _is_records(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _is_nested(value: Any) -> bool:
    return (isinstance(value, Mapping) and bool(value)) or _is_records(value)
