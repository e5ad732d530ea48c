"""Tables that sort by any column; page.js does the sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.edge_harness.report.figures import figure
from benchmarks.edge_harness.report.markup import Content, Markup, element


@dataclass(frozen=True)
class Cell:
    """``key`` is what a column sorts by: a number, a text, or ``None`` for a cell that sorts last."""

    content: Content
    key: float | str | None = None
    number: bool = False
    style: str = ""


def text(value: str, style: str = "") -> Cell:
    return Cell(value, value, style=style)


def number(value: float | int | None, shown: Content = None) -> Cell:
    """A figure; ``shown`` replaces its text and keeps its place in the order."""
    content = shown if shown is not None else element("span", figure(value), class_="figure")
    return Cell(content, value, number=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str) -> Markup:
    """The first column names the row. ``caption`` is for those who cannot see the table."""
    numeric = [bool(rows) and all(row[i].number for row in rows) for i in range(len(headings))]
    head = [
        element(
            "th",
            element("button", heading, element("span", class_="order", aria_hidden="true"), type="button"),
            scope="col",
            class_="number" if numeric[i] else None,
        )
        for i, heading in enumerate(headings)
    ]
    body = [element("tr", [_cell(cell, first=i == 0) for i, cell in enumerate(row)]) for row in rows]
    made = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", head)),
        element("tbody", body),
        class_="sortable",
    )
    # Reachable by keyboard, or what lies outside the window could not be scrolled to.
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(cell: Cell, first: bool) -> Markup:
    key = None if cell.key is None else repr(cell.key) if isinstance(cell.key, float) else str(cell.key)
    classes = " ".join(filter(None, ("number" if cell.number else "", cell.style)))
    if first:
        return element("th", cell.content, scope="row", data_key=key, class_=classes or None)
    return element("td", cell.content, data_key=key, class_=classes or None)
