"""Whatever is put into an element is text."""

from __future__ import annotations

from benchmarks.edge_harness.report.markup import Markup, element, join


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = element("b", "1 < 2 & 3")
    assert inner == "<b>1 &lt; 2 &amp; 3</b>"
    assert element("p", "<i>", inner) == "<p>&lt;i&gt;<b>1 &lt; 2 &amp; 3</b></p>"
    assert isinstance(inner, Markup)


def test_attributes_are_escaped() -> None:
    made = element(
        "a", "x", href="\"><script>'", data_key="a&b", class_="k", hidden=True, title=None, open=False
    )
    assert made == '<a href="&quot;&gt;&lt;script&gt;&#x27;" data-key="a&amp;b" class="k" hidden>x</a>'


def test_children_are_flattened() -> None:
    assert join("a", None, ["b", [element("br"), 3]], (x for x in ("<", 1.5))) == "ab<br>3&lt;1.5"


def test_joined_text_is_no_longer_trusted_once_changed() -> None:
    assert element("p", element("b", "x") + "<i>") == "<p>&lt;b&gt;x&lt;/b&gt;&lt;i&gt;</p>"
