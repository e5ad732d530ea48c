"""The measuring commands on a tiny model in a real engine: exact counts, true kernels, filled contexts.

A start of vLLM costs seconds and compiling the tiny model many more, so what is not slow here runs eagerly
(``EAGER``) and starts three engines in all; what starts several, needs the compiler or vLLM's own processes
is slow. A command that is to be executed for real belongs into one of these tests rather than into a start
of its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.measure.fresh_process import REPOSITORY
from benchmarks.edge_harness.measure.verification_paths import WITHIN_NATS
from tests.quantization.tiny_checkpoint import LAYERS, TinyCheckpoint
from vllm_omni.cli.machine import Machine

pytestmark = pytest.mark.engine

# Nothing is compiled.
EAGER = ("--engine-args", '{"enforce_eager": true}')
# Four linear layers in each decoder layer once q, k, v and gate, up are fused.
LINEAR_LAYERS = 4 * LAYERS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    TinyCheckpoint(dtype=torch.bfloat16, bits_of=lambda name: 8 if "embed" in name else 4).write(folder)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def bench(*arguments: str) -> dict[str, Any]:
    """Whatever else the machine does: no figure here is compared with another run's."""
    return run(["benchmarks/edge_harness/bench_harness.py", *arguments, "--allow-busy"])


def check_bound(record: dict[str, Any], threads: int) -> None:
    """As many threads as cores, bound as vLLM binds its workers'."""
    variables = record["omp"]["variables"]
    assert variables["OMP_NUM_THREADS"] == str(threads)
    assert variables.keys() & {"GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"}
    assert len(record["cores"]) == threads


def test_memory_probe(model: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    record = bench(
        *("memory-probe", "--model", str(model), "--context-len", "300", "--generate", "4"),
        *("--cache-root", str(cache), "--out", str(out), *EAGER),
    )
    check_bound(record, len(Machine.read().cores))
    names = [phase["name"] for phase in record["phases"]]
    assert names == [
        "before import",
        "after import",
        "after load",
        "after warm-up",
        "at context",
        "after trim",
    ]
    assert record["peak_rss_anon_tree_mb"] >= record["rss_anon_at_context_mb"]
    assert record["rss_anon_tree_mb"] > record["phases"][1]["rss_anon_mb"] > 100
    assert record["pss_anon_tree_mb"] == pytest.approx(record["rss_anon_tree_mb"], rel=0.2)
    assert record["ready_s"] > record["import_s"] + record["init_s"]
    assert [note for note in record["notes"] if "busy" not in note] == []
    artifact = read(out)
    assert artifact.arms[0].model is not None
    assert artifact.arms[0].model.quantization == "cpu_int4"


def test_decode(model: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "decode.json"
    record = bench(
        *("decode", "--model", str(model), "--depth", "40,0", "--batch", "1,2", "-n", "6", "--repeats", "2"),
        *("--threads", "1", "--no-ceiling", "--cache-root", str(cache), "--out", str(out), *EAGER),
    )
    check_bound(record["runs"][0], 1)
    assert [(row["test"], row["batch"]) for row in record["table"]] == [
        ("tg6 @ d40", 1),
        ("tg6", 1),
        ("tg6 @ d40", 2),
        ("tg6", 2),
    ]
    assert all(len(row["samples_ts"]) == 2 and min(row["samples_ts"]) > 0 for row in record["table"])
    assert len(record["samples"]["itl_ms"]) == 2 * 6
    assert record["ran"]["weight_bits"] == 4
    assert record["ran"]["head_bits"] == 8
    counted = {name: layers for name, layers in record["kernels"].items() if "::" not in name}
    # The linear layers, the head, the table's rows.
    assert sorted(counted.values()) == [1, 1, LINEAR_LAYERS]
    assert record["verification"]["kind"] == "logprob"
    paths = record["runs"][0]["verification_paths"]
    means = paths["logprob_prefill_nats"], paths["logprob_decode_nats"]
    assert record["verification"]["value"] == pytest.approx(sum(means) / 2)
    assert abs(means[0] - means[1]) <= WITHIN_NATS
    assert max(means) < 0
    assert record["ran"]["kv_dtype"] == "bfloat16"
    artifact = read(out)
    assert "decode measured on an empty KV cache" in artifact.notes
    # One thread is not published as all cores, nor the process that measured as the one that asked it to.
    assert artifact.provenance.thread_set.cores == record["runs"][0]["cores"]
    assert artifact.arms[0].env["OMP_NUM_THREADS"] == "1"
    assert [run.tag for run in artifact.runs] == [
        "process, 1 thread",
        *(f"tg6{depth}, batch {batch}, 1 thread" for batch in (1, 2) for depth in (" @ d40", "")),
    ]
    assert artifact.runs[0].memory


def test_prefill(model: Path, cache: Path) -> None:
    record = bench(
        *("prefill", "--model", str(model), "--prompt-len", "32", "--depth", "0,16", "--repeats", "2"),
        *("--threads", "1", "--cache-root", str(cache), *EAGER),
    )
    assert [row["test"] for row in record["table"]] == ["pp32", "pp32 @ d16"]
    assert all(len(row["samples_ts"]) == 2 and min(row["samples_ts"]) > 0 for row in record["table"])
    assert record["pp_tps"] == pytest.approx(statistics.median(record["table"][0]["samples_ts"]))


@pytest.mark.slow
def test_startup(model: Path) -> None:
    record = bench("startup", "--model", str(model), "--repeats", "1", "--context-len", "256", *EAGER)
    cold, warm = record["starts"]
    for start in (cold, warm):
        check_bound(start, len(Machine.read().cores))
        parts = sum(start[name] for name in ("config_s", "load_s", "compile_s", "warm_up_s"))
        assert parts == pytest.approx(start["init_s"])
        known = sum(start[name] for name in ("interpreter_s", "import_s", "init_s", "first_token_s"))
        assert known <= start["ready_s"]
    assert record["cold_ready_s"] == cold["ready_s"]
    assert record["ready_s"] == warm["ready_s"]


def test_bandwidth() -> None:
    record = bench("bandwidth", "--threads", "1", "--passes", "2", "--buffer-mb", "64")
    assert record["ceiling_gbps"] > 0
    assert record["threads"] == 1


@pytest.mark.slow
def test_the_whole_workload_of_an_arm(model: Path, cache: Path) -> None:
    workload = {"prompt_tokens": 24, "decode_tokens": 5, "depth": 100, "batch": 2, "repeats": 2}
    record = run(
        [
            *("-m", "benchmarks.edge_harness.measure.arm", "--model", str(model)),
            *("--workload", json.dumps(workload), "--cache-root", str(cache), "--threads", "1"),
        ]
    )
    assert record["workload"].items() >= workload.items()
    assert len(record["samples"]["itl_ms"]) == 2 * 4
    for name in ("ready_s", "import_s", "load_s", "warm_up_s", "pp_tps", "tg_tps", "ttft_ms", "step_ms"):
        assert record[name] > 0, name
    # The tiny model fits any cache, so that no share of memory's ceiling is claimed.
    assert "ceiling_share" not in record
    assert record["weight_bytes_per_token"] > 0
    assert any("fit the last-level cache" in note for note in record["notes"])
    check_bound(record, 1)
    assert record["threads"] == 1
    assert set(record["verification_paths"]) == {"logprob_prefill_nats", "logprob_decode_nats"}
    assert record["model"]["head_bits"] == 8
    parts = sum(record[name] for name in ("config_s", "load_s", "compile_s", "warm_up_s"))
    assert parts == pytest.approx(record["init_s"])


@pytest.mark.slow
def test_profile_adds_up(model: Path, cache: Path) -> None:
    record = bench(
        *("profile", "--model", str(model), "--prompt-len", "64", "--steps", "3", "--repeats", "3"),
        *("--cache-root", str(cache)),
    )
    buckets = ("gemm", "attention", "norm_activation", "sampling", "framework", "uncovered")
    for index, wall in enumerate(record["samples"]["wall_ms"]):
        assert sum(record["samples"][f"{name}_ms"][index] for name in buckets) == pytest.approx(wall)
        assert min(record["samples"][f"{name}_ms"][index] for name in buckets) >= 0
    assert all(record[f"{name}_ms"] > 0 for name in buckets)
    # What runs outside every operator is Python between them: never most of a step of any model.
    assert record["uncovered_ms"] < 0.6 * record["profiled_step_ms"]
    calls = {op["name"]: op["calls_per_step"] for op in record["ops"] if op["bucket"] == "gemm"}
    # And the head.
    assert LINEAR_LAYERS + 1 in calls.values()
    # The compiler's own kernels are named, so their arithmetic is not taken for framework.
    assert any(op["bucket"] == "norm_activation" and "cpp" in op["name"] for op in record["ops"])


@pytest.mark.slow
def test_ledger(model: Path, cache: Path) -> None:
    record = bench("ledger", "--model", str(model), "--context-len", "400", "--cache-root", str(cache))
    rows = {entry["name"]: entry for entry in record["entries"]}
    assert rows["KV cache"]["anonymous_mb"] > 0
    assert rows["KV cache"]["allocated_mb"] >= rows["KV cache"]["anonymous_mb"] * 0.9
    # Packed weights are the file's pages.
    assert rows["packed weights"]["mapped_mb"] > 0
    assert rows["packed weights"]["anonymous_mb"] == 0
    assert rows["RoPE cache"]["allocated_mb"] > 0
    assert rows["scales of packed weights"]["allocated_mb"] > 0
    for entry in record["entries"]:
        assert entry["anonymous_mb"] >= 0, entry
        assert entry["mapped_mb"] >= 0, entry
    # Neither more than there is, nor much less: a tensor counted twice, or a role that is lost, shows.
    assert -0.02 < record["unattributed_share"] < 0.2
    residual = rows["native allocations without a known owner"]["anonymous_mb"]
    assert record["unattributed_with_residual_mb"] == pytest.approx(record["unattributed_mb"] + residual)
    assert record["unattributed_share"] <= record["unattributed_share_with_residual"] < 0.5


@pytest.mark.slow
def test_memory_probe_watches_all_of_vllms_processes(model: Path, cache: Path) -> None:
    record = bench(
        *("memory-probe", "--model", str(model), "--context-len", "300", "--layout", "default"),
        *("--cache-root", str(cache)),
    )
    # The client, vLLM's core and its worker.
    assert record["peak_processes"] >= 3
    assert record["trimmed_processes"] == 2
    assert record["peak_rss_anon_tree_mb"] >= record["rss_anon_at_context_mb"] > 300
    assert any("core process" in note for note in record["notes"])
