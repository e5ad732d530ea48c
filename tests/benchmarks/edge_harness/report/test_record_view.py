"""Any record is shown whole."""

from __future__ import annotations

from benchmarks.edge_harness.report.record_view import record_view


def test_scalars_lists_and_records() -> None:
    shown = record_view(
        {"a": None, "b": True, "c": 1234567, "d": 0.5, "e": ["x", "y"], "f": {"g": "<h>"}, "i": []}
    )
    for part in (
        "<dt>a</dt><dd>–</dd>",
        "yes",
        "1,234,567",
        "0.5",
        "<code>x</code> <code>y</code>",
        "&lt;h&gt;",
    ):
        assert part in shown
    assert "<h>" not in shown


def test_equal_records_are_a_table_and_others_are_not() -> None:
    shown = record_view({"rows": [{"threads": 1, "gbps": 11.5}, {"threads": 2, "gbps": 20.5}]})
    assert shown.count("<tr>") == 3
    assert 'data-key="20.5"' in shown
    assert "<table" not in record_view({"rows": [{"a": 1}, {"b": 2}]})


def test_what_a_row_nests_is_in_its_cells() -> None:
    shown = record_view(
        {
            "rows": [
                {"weight": {"n": 7, "k": 8}, "ns": [5, 1, 3, 2, 4]},
                {"weight": {"n": 9, "k": 8}, "ns": [6]},
            ]
        }
    )
    for heading in ("weight.n", "weight.k", "ns"):
        assert f'<button type="button">{heading}<' in shown
    assert "3 (median of 5)" in shown
    assert 'data-key="9"' in shown


def test_a_long_list_is_folded() -> None:
    shown = record_view({"flags": [f"f{i}" for i in range(40)]})
    assert "<summary>40 values</summary>" in shown
    assert "<code>f39</code>" in shown


def test_nested_lists_and_nothing() -> None:
    assert record_view({"a": [[1, 2], [3]]}).count("<li>") == 2
    assert record_view({}) == "<span>–</span>"


def test_results_are_figures_and_settings_are_not() -> None:
    assert 'class="figure"' in record_view({"gbps": 11.23456}, as_figures=True)
    assert 'class="figure"' not in record_view({"gbps": 11.2})
