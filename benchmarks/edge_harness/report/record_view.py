"""Any JSON record as nested lists; records that are alike as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.edge_harness.report import tables
from benchmarks.edge_harness.report.figures import MISSING, figure
from benchmarks.edge_harness.report.markup import Content, Markup, element, join
from benchmarks.edge_harness.report.result_tables import as_table

_LONGEST_INLINE = 12


def record_view(value: Mapping[str, Any], as_figures: bool = False) -> Markup:
    """``as_figures``: the numbers are results, to be struck out with a retracted artifact's others."""
    items = [
        element("div", element("dt", str(key)), element("dd", _value(str(key), item, as_figures)))
        for key, item in value.items()
    ]
    return element("dl", items, class_="record") if items else element("span", MISSING)


def _value(name: str, value: Any, as_figures: bool) -> Content:
    if isinstance(value, Mapping):
        return record_view(value, as_figures)
    if isinstance(value, list | tuple):
        return _list(name, value, as_figures)
    return _scalar(value, as_figures)


def _list(name: str, values: Sequence[Any], as_figures: bool) -> Content:
    if not values:
        return MISSING
    if all(isinstance(value, Mapping) for value in values):
        return _table(name, values) or [record_view(value, as_figures) for value in values]
    if any(isinstance(value, list | tuple | Mapping) for value in values):
        return element("ol", [element("li", _value(name, value, as_figures)) for value in values])
    # A command line is read and copied as one, with its parts apart.
    shown = [element("code", _plain(value)) for value in values[:_LONGEST_INLINE]]
    spaced = join(*(part for one in shown for part in (one, " ")))
    if len(values) <= _LONGEST_INLINE:
        return spaced
    rest = join(*(part for value in values for part in (element("code", _plain(value)), " ")))
    return element("details", element("summary", f"{len(values)} values"), rest)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Markup | None:
    """``None`` where the rows are not alike. What a row nests is a column each, a list of numbers its
    median."""
    if not rows[0] or any(list(row) != list(rows[0]) for row in rows):
        return None
    found = as_table(name, rows)
    cells = [[_cell(cell) for cell in row] for row in found.rows]
    return tables.table(found.headings, cells, name)


def _cell(value: Any) -> tables.Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return tables.number(value)
    return tables.text(_plain(value))


def _scalar(value: Any, as_figures: bool) -> Content:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        # A result is rounded to be read; a version, a size or a count is not.
        text = figure(value) if as_figures else f"{value:,}" if isinstance(value, int) else f"{value:g}"
        return element("span", text, class_="figure" if as_figures else None)
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
