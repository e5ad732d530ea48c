"""The table in the shape of llama-bench's."""

from __future__ import annotations

import csv
import io
import json

import pytest

from benchmarks.edge_harness.measure.bench_table import Row, name_of_test, table

ROWS = [
    Row("smollm2", 100 << 20, "ours", 2, 1, "tg128 @ d512", (50.0, 52.0, 54.0), 19.2, 19.0, 21.5, 0.417),
    Row("smollm2", 100 << 20, "ours", 2, 4, "pp512", (400.0,)),
]


@pytest.mark.parametrize(
    ("kind", "tokens", "depth", "name"),
    [("pp", 512, 0, "pp512"), ("tg", 128, 512, "tg128 @ d512"), ("pp", 64, 8192, "pp64 @ d8192")],
)
def test_names(kind, tokens, depth, name) -> None:
    assert name_of_test(kind, tokens, depth) == name


def test_markdown() -> None:
    lines = table(ROWS, "md").splitlines()
    assert lines[0].split(" | ")[:3] == ["| model", "size", "engine"]
    assert "| smollm2 | 100.00 MiB | ours | 2 | 1 | tg128 @ d512 | 52.00 ± 2.00 | 19.20 | 19.00 |" in lines[2]
    assert "| 42% |" in lines[2]
    # One sample has no spread.
    assert "| pp512 | 400.00 |" in lines[3]
    assert {line.count("|") for line in lines} == {12}


def test_csv_and_json_hold_the_same_rows() -> None:
    from_json = json.loads(table(ROWS, "json"))
    from_csv = list(csv.DictReader(io.StringIO(table(ROWS, "csv"))))
    assert [row["test"] for row in from_csv] == [row["test"] for row in from_json]
    assert from_json[0]["avg_ts"] == 52
    assert from_json[0]["stddev_ts"] == pytest.approx(2)
    assert from_json[1]["stddev_ts"] is None
    assert from_csv[1]["stddev_ts"] == ""
    assert from_csv[0]["samples_ts"].split() == ["50.0000", "52.0000", "54.0000"]


def test_no_rows() -> None:
    assert json.loads(table([], "json")) == []
    assert table([], "csv").strip() == ""
