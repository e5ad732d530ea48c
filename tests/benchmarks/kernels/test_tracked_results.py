"""The tables of docs/decisions.md that state kernel measurements are those of the tracked records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.file import read

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "kernels" / "results"
DECISIONS = (ROOT / "docs" / "decisions.md").read_text()


def result(name: str) -> dict[str, Any]:
    content = read(RESULTS / name).result
    assert content is not None
    assert f"../benchmarks/kernels/results/{name}" in DECISIONS
    return content


@pytest.mark.parametrize(
    ("name", "bits"), [("gemv-qwen3-1.7b-q4-2026-12-01.json", 4), ("gemv-qwen3-1.7b-q8-2026-12-01.json", 8)]
)
def test_fractions_of_the_read_ceiling(name: str, bits: int) -> None:
    content = result(name)
    assert content["settings"]["samples"] >= 20
    rows: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in content["together"]:
        assert (row["bits"], row["shapes"]) == (bits, 5)
        threads = rows.setdefault((row["activation"], row["zeros"]), {})
        threads.setdefault(row["threads"], []).append(row["fraction_of_ceiling"])
    groups = " / ".join(dict.fromkeys(str(row["group_size"]) for row in content["together"]))
    zeros = {"none": "symmetric", "u8": "zero-points"}
    for (activation, kind), fractions in rows.items():
        one, two = (" / ".join(f"{f:.3f}" for f in fractions[threads]) for threads in (1, 2))
        line = f"| {activation} | {bits} bit, {zeros[kind]} | {groups} | {one} | {two} |"
        assert line in DECISIONS, line


def test_row_major_tables() -> None:
    for row in result("gemv-table-151936x2048-2026-12-01.json")["together"]:
        line = (
            f"| {row['stored']} | `{row['kernel']}` | {row['threads']} | {row['fraction_of_ceiling']:.3f} |"
        )
        assert line in DECISIONS, line


def test_tokens_at_once_against_stock() -> None:
    rows = {
        (r["n"], r["m"], r["arm"]): r
        for r in result("gemm-2026-12-01.json")["results"]
        if r["arm"] in ("native", "int8")
    }
    for m in sorted({m for _, m, _ in rows}):
        cells = []
        for arm, stock in (("native", "stock-bf16"), ("native", "stock-int4"), ("int8", "stock-bf16")):
            found = [rows[n, m, arm]["times_faster_than"][stock] for n in (4096, 2048)]
            cells.append("; ".join(f"{ratio:.1f} ({low:.1f}-{high:.1f})" for ratio, low, high in found))
        line = f"| {m} | {' | '.join(cells)} |"
        assert line in DECISIONS, line
