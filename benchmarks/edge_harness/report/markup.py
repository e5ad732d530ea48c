"""Elements of HTML and SVG that escape whatever is put into them.

Only :func:`element` and :func:`join` make :class:`Markup`; every other string is text, so a tag named
``<script>`` is shown and not run.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

_VOID = {"br", "hr", "img", "input", "link", "meta", "wbr"}


class Markup(str):
    """Escaped already."""

    __slots__ = ()


Content: TypeAlias = "str | int | float | Iterable[Content] | None"
Attribute = str | int | float | bool | None


def element(name: str, *children: Content, **attributes: Attribute) -> Markup:
    """``element("td", "<1", class_="number")`` is ``<td class="number">&lt;1</td>``. In an attribute's name
    a trailing underscore is dropped and the others are hyphens; ``None`` and ``False`` leave it out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Content) -> Markup:
    """The children one after the other, text escaped."""
    return Markup("".join(_content(child) for child in children))


def _content(child: Content) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return html.escape(str(child), quote=False)
    return "".join(_content(one) for one in child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
