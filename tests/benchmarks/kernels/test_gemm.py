"""The GEMM benchmark on a tiny layer: all arms compute the same; what is said follows from the samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.edge_harness.artifact.file import read
from benchmarks.kernels import gemm
from benchmarks.kernels.app import app
from benchmarks.kernels.gemm import Layer, Measurement

SMALL = ["--shapes", "64x128", "--groups", "64", "--buffer-mib", "1", "--allow-cached", "--samples", "3"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(gemm, "SAMPLE_NS", 1)
    yield
    torch.set_num_threads(threads)


def run(*arguments: str):
    return CliRunner().invoke(app, ["gemm", *SMALL, *arguments])


def test_all_arms_compute_the_same_layer_and_are_on_record(tmp_path: Path) -> None:
    out = tmp_path / "new.json"
    done = run("--m", "1,5,33", "--threads", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    content = read(out).result
    assert content is not None
    rows = content["results"]
    arms = ["native", "int8", "stock-bf16", "stock-int4"]
    assert [(row["m"], row["arm"]) for row in rows] == [(m, arm) for m in (1, 5, 33) for arm in arms]
    for row in rows:
        assert len(row["sample_ns"]) == 3
        assert 0 < row["relative_error"] <= gemm.TOLERANCE[row["arm"]]
        assert ("times_faster_than" in row) == (row["arm"] in gemm.OURS)
    assert rows[0]["times_faster_than"].keys() == {"stock-bf16", "stock-int4"}
    assert rows[0]["kernel"].endswith("q4")
    assert rows[3]["kernel"].startswith("cpu_gemm_wna16-")


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gemm.TOLERANCE, "stock-bf16", 1e-9)
    done = run("--m", "4", "--stock", "stock-bf16")
    assert done.exit_code == 2
    assert "stock-bf16, M = 4: relative error" in done.output


def measured(arm: str, *sample_ns: int, calls: int = 1) -> Measurement:
    return Measurement(arm, "name", 2, 1, calls, 0.0, list(sample_ns))


def test_figures_follow_from_the_samples() -> None:
    ours = measured("native", 200, 400, 600, calls=2)
    stock = measured("stock-bf16", 300, 600, 900)
    layer = Layer(10, 20, 10)
    assert ours.call_ns == 200
    assert ours.gflops(layer) == 2 * 2 * 10 * 20 / 200
    assert ours.times_faster(stock) == pytest.approx((3.0, 3.0, 3.0))
    rows = gemm.record(layer, [ours, stock])
    assert rows[0]["times_faster_than"]["stock-bf16"] == pytest.approx((3.0, 3.0, 3.0))
    assert gemm.slower_than_stock(rows) == []
    rows = gemm.record(layer, [measured("native", 900, 900, 910), measured("stock-bf16", 300, 310, 300)])
    (line,) = gemm.slower_than_stock(rows)
    assert line.startswith("10x20, M = 2, threads 1: native has 0.34 [")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--m", "0"], "--m 0: expected positive integers"),
        (["--threads", "0"], "--threads 0: expected positive integers"),
        (["--shapes", "40x64"], "--shapes 40x64: expected multiples of 32"),
        (["--groups", "48"], "--groups 48: expected a multiple of 8 that divides K = 128"),
        (["--stock", "oneDNN"], "--stock oneDNN: expected some of stock-bf16,stock-int4"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], complaint: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert complaint in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_slower_than_stock_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "slower_than_stock", lambda rows: ["here"])
    done = run("--m", "1", "--activation", "native", "--stock", "stock-bf16", "--never-slower")
    assert done.exit_code == 1
    assert "slower than stock: here" in done.output
