"""Tables of records, as probes write them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from benchmarks.edge_harness.artifact.file import read, write_new
from benchmarks.edge_harness.artifact.schema import Artifact
from benchmarks.edge_harness.provenance.load import collect_load
from benchmarks.edge_harness.provenance.probe import probe_artifact
from benchmarks.edge_harness.report.csv_rows import csv_rows
from benchmarks.edge_harness.report.load import Source
from benchmarks.edge_harness.report.markdown import markdown
from benchmarks.edge_harness.report.page import page
from benchmarks.edge_harness.report.result_tables import as_table, cell, result_tables
from benchmarks.kernels.gemv import Case, Measurement, result
from benchmarks.kernels.weights import Weight


@pytest.fixture
def gemv(tmp_path: Path) -> Artifact:
    """As the kernel benchmark writes it."""
    results = [
        result(
            Case(Weight(4096, 2048, bits, 32, "none"), "bf16", "native", 1),
            Measurement(
                f"gemv{bits}", 1e-3, 9, 4_000_000, [200, 400, 300, 250, 350], [100, 200, 150, 125, 175], 5000
            ),
        )
        for bits in (4, 8)
    ]
    record = {"settings": {"samples": 5, "mapping": "file"}, "results": results}
    path = tmp_path / "gemv.json"
    write_new(path, probe_artifact("kernels/gemv: fraction", record, before=collect_load([0], 0.01)))
    return read(path)


def test_a_kernel_benchmark_is_a_table_everywhere(gemv: Artifact) -> None:
    settings, table = result_tables(gemv.result)
    assert (settings.name, settings.rows) == ("settings", [["samples", 5], ["mapping", "file"]])
    assert table.name == "results"
    rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    assert [(row["weight.bits"], row["kernel"]) for row in rows] == [(4, "gemv4"), (8, "gemv8")]
    assert rows[0]["fraction_of_ceiling"] == 0.5
    assert rows[0]["kernel_ns"] == "300 (median of 5)"
    source = Source("gemv.json", gemv, None)
    text = markdown([source], "t")
    assert "| weight.n | weight.k | weight.bits |" in text
    assert sum(line.count("gemv4") for line in text.splitlines() if line.startswith("|")) == 1
    html = page([source], "t")
    assert ">weight.bits<" in html
    assert ">fraction_of_ceiling<" in html
    found = list(csv.DictReader(io.StringIO(csv_rows([source]))))
    fractions = [row for row in found if row["metric"] == "fraction_of_ceiling"]
    assert [(row["tag"], row["pass_no"], row["value"]) for row in fractions] == [
        ("results", "1", "0.5"),
        ("results", "2", "0.5"),
    ]


def test_records_within_records_have_a_table_each() -> None:
    found = result_tables(
        {
            "text": "x",
            "paths": {
                "decode": {"kl": 0.5, "intervals": {"kl": {"low": 0.4, "high": 0.6}}},
                "prefill": {"kl": 0.25},
            },
            "greedy": {"prompts": 2, "detail": [{"name": "a", "same": True}, {"name": "b", "at": 3}]},
            "empty": {},
            "none": [],
        }
    )
    assert [(table.name, table.rows) for table in found] == [
        ("result", [["text", "x"], ["empty", None], ["none", None]]),
        ("paths.decode", [["kl", 0.5]]),
        ("paths.decode.intervals.kl", [["low", 0.4], ["high", 0.6]]),
        ("paths.prefill", [["kl", 0.25]]),
        ("greedy", [["prompts", 2]]),
        ("greedy.detail", [["a", "yes", None], ["b", None, 3]]),
    ]
    assert found[-1].headings == ["name", "same", "at"]
    assert result_tables(None) == []


def test_cells() -> None:
    assert cell([1.0, 2.0]) == "1, 2"
    assert cell([1, 2, 3, 4, 5]) == "3 (median of 5)"
    assert cell(["a", "b", "c", "d", "e"]) == "a, b, c, d, e"
    assert cell({"gemv": 210}) == "gemv 210"
    assert (cell(True), cell(None), cell(2.5)) == ("yes", None, 2.5)


def test_rows_may_lack_what_others_have() -> None:
    table = as_table("t", [{"a": 1}, {"b": {"c": 2}}])
    assert (table.headings, table.rows) == (["a", "b.c"], [[1, None], [None, 2]])


def test_retracted_figures_are_struck_out(gemv: Artifact) -> None:
    from benchmarks.edge_harness.artifact.schema import Retraction

    retraction = Retraction(date="2026-01-05", reason="r", superseded_by=None)
    text = markdown([Source("gemv.json", gemv, retraction)], "t")
    assert "~~0.5000~~" in text
