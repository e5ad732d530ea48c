"""The GEMV benchmark on buffers of a few KiB: what it refuses, checks, computes and writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.edge_harness.artifact.file import read
from benchmarks.kernels import gemv, rotation
from benchmarks.kernels.app import app
from benchmarks.kernels.weights import Weight
from vllm_omni.errors import OmniError

SMALL = ["--shapes", "16x64", "--buffer-mib", "1", "--allow-cached", "--samples", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def _same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(*arguments: str):
    return CliRunner().invoke(app, ["gemv", *SMALL, *arguments])


@pytest.mark.parametrize("mapping", ["anonymous", "file"])
def test_an_artifact_holds_raw_samples_and_where_they_come_from(tmp_path: Path, mapping: str) -> None:
    out = tmp_path / "results" / "new.json"
    done = run("--groups", "32", "--bits", "4,8", "--mapping", mapping, "--out", str(out))
    assert done.exit_code == 0, done.output
    artifact = read(out)
    assert artifact.kind == "probe"
    content = artifact.result
    assert content is not None
    assert content["settings"]["mapping"] == mapping
    # bits x zeros x activation
    assert len(content["results"]) == 2 * 2 * 2
    for result in content["results"]:
        assert len(result["kernel_ns"]) == len(result["ceiling_ns"]) == 2
        assert result["kernel"].endswith(f"q{result['weight']['bits']}")
        assert 0 < result["bytes_read"] <= 1 << 20
        assert result["relative_error"] <= gemv.TOLERANCE[result["activation"]] + gemv.ROUNDING["bf16"]
    assert [path.name for path in out.parent.iterdir()] == ["new.json"]


def test_a_result_is_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "old.json"
    out.write_text("old")
    done = run("--out", str(out))
    assert done.exit_code == 2
    assert "never overwritten" in done.output
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--shapes", "16"], "--shapes 16: expected NxK"),
        (["--shapes", "0x8"], "--shapes 0x8: expected NxK"),
        (["--groups", "many"], "--groups many: expected integers"),
        (["--activation", "int4"], "--activation int4: expected some of native,int8,int8_32"),
        (["--tables", "int8"], "--tables int8: expected some of bf16,f16"),
        (["--tables", "bf16", "--activation", "int8"], "--activation int8: expected native"),
        (["--mapping", "huge"], "--mapping huge: expected some of anonymous,file"),
        (["--shapes", "4096x4096"], "do not fit a buffer"),
        (["--buffer-mib", str(1 << 40)], "of the available memory"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], complaint: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert complaint in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_buffer_that_fits_the_cache_is_refused() -> None:
    with pytest.raises(OmniError, match="last-level cache"):
        rotation.buffer_bytes(1, allow_cached=False)
    assert rotation.buffer_bytes(1, allow_cached=True) == 1 << 20


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gemv.ROUNDING, "bf16", 1e-9)
    done = run("--groups", "32", "--activation", "native")
    assert done.exit_code == 2
    assert "relative error" in done.output


def test_figures_follow_from_the_samples() -> None:
    m = gemv.Measurement("name", 0.0, 1, 600, kernel_ns=[100, 200, 300], ceiling_ns=[50, 180, 60], call_ns=5)
    assert m.fraction == 0.5
    assert m.gb_per_s(m.kernel_ns) == 3.0
    assert m.gb_per_s(m.ceiling_ns) == 10.0


def test_shapes_together_are_weighted_by_their_bytes() -> None:
    """1,000 bytes at half the ceiling and 3,000 at the ceiling, whatever the ceiling was then."""
    slow = gemv.Measurement("q4", 0.0, 2, 2000, kernel_ns=[200, 200], ceiling_ns=[100, 100], call_ns=5)
    fast = gemv.Measurement("q4", 0.0, 1, 3000, kernel_ns=[900, 900], ceiling_ns=[900, 900], call_ns=5)
    cases = [gemv.Case(Weight(n, 64, 4, 32, "none"), "bf16", "native", 1) for n in (16, 48)]
    (row,) = gemv.together(list(zip(cases, (slow, fast), strict=True)))
    assert (row.shapes, row.weight_bytes) == (2, 4000)
    assert row.fraction_of_ceiling == pytest.approx(4000 / (1000 / 0.5 + 3000))
    other = replace(cases[1], threads=2)
    assert [row.threads for row in gemv.together([(cases[0], slow), (other, fast)])] == [1, 2]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_type_of_activations_is_held_to_its_own_rounding(dtype: str) -> None:
    done = run("--groups", "32", "--dtype", dtype, "--shapes", "48x256")
    assert done.exit_code == 0, done.output


def test_unquantized_tables(tmp_path: Path) -> None:
    out = tmp_path / "tables.json"
    done = run("--shapes", "100x70,16x64", "--tables", "bf16,f16", "--dtype", "bf16", "--out", str(out))
    assert done.exit_code == 0, done.output
    content = read(out).result
    assert content is not None
    assert [(r["weight"]["stored"], r["weight"]["bits"]) for r in content["results"]] == [
        ("bf16", 16),
        ("bf16", 16),
        ("f16", 16),
        ("f16", 16),
    ]
    assert [row["shapes"] for row in content["together"]] == [2, 2]
    assert all(r["call_ns"] > 0 for r in content["results"])


def test_below_the_minimum_the_exit_code_says_so() -> None:
    done = run("--groups", "32", "--bits", "4", "--minimum", "1e9")
    assert done.exit_code == 1
    assert "expected at least" in done.output
