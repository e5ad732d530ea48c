from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe

ROOT = Path(__file__).resolve().parents[4]


def bench(*arguments: str, timeout: int = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/edge_harness/bench_harness.py", "fidelity", *arguments]
    env = psutil.Process().environ() | environment
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)


def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    taken = tmp_path / "taken.json"
    taken.write_text("{}")
    out = tmp_path / "new.json"
    cases = {
        ("--model", str(tmp_path), "--out", str(taken)): "results are never overwritten",
        ("--model", str(tmp_path / "absent"), "--out", str(out)): "--model",
        ("--model", str(tmp_path), "--reference", "nowhere", "--out", str(out)): "--reference nowhere",
        ("--model", str(tmp_path), "--path", "sideways", "--out", str(out)): "--path",
    }
    for arguments, message in cases.items():
        done = bench(*arguments)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert message in done.stderr
    assert not out.exists()


def test_a_reference_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    make_model(Recipe.checked("tiny-llama", format="bf16"), tmp_path / "model")
    make_model(Recipe.checked("tiny-llama", format="bf16"), tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    content = json.loads(file.read_text())
    # The merge that makes " the" is gone.
    content["model"]["merges"].remove(["Ġth", "e"])
    file.write_text(json.dumps(content))
    out = tmp_path / "out.json"
    places = ("--model", str(tmp_path / "model"), "--reference", str(tmp_path / "other"))
    done = bench(*places, "--out", str(out))
    assert done.returncode == 2, done.stderr
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error:")]
    assert "--reference other: expected the model's tokenizer; window 0, token" in line
    assert not out.exists()


@pytest.mark.engine
def test_kernels_cost_no_more_than_bf16_and_quantization_costs_more(tmp_path: Path) -> None:
    """Against its own weights a packed model is at the floor on both paths, against the original far off."""
    folders = {}
    for format in ("packed", "bf16"):
        folders[format] = tmp_path / format
        make_model(Recipe.checked("tiny-qwen3", format=format), folders[format])
    common = ("--model", str(folders["packed"]), "--windows", "3", "--window-tokens", "192")
    cache = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    own, original = tmp_path / "own.json", tmp_path / "original.json"
    done = bench(*common, "--out", str(own), timeout=800, **cache)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "decode: 573 tokens" in done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["paths"].keys() == {"decode", "prefill"}
    content = json.loads(own.read_text())
    assert [run["tag"] for run in content["runs"]] == ["decode", "prefill"]
    for run in content["runs"]:
        assert 0 < run["metrics"]["kl_mean_nats"] < 1e-2
        assert run["metrics"]["kl_over_floor"] < 1.5, run["tag"]
        assert run["metrics"]["top1_agreement"] > 0.95
    traces = content["result"]["traces"]
    assert traces["decode"]["tokens_a_step_of_a_sequence"] == [1, 1]
    assert traces["prefill"]["tokens_a_step_of_a_sequence"] == [192, 192]
    # Two layers of four fused linears, the head, and the table's rows.
    assert sum(content["result"]["kernels"]["decode"].values()) == 10
    assert content["result"]["greedy"]["prompts"] == 12
    assert content["result"]["greedy_floor"]["prompts"] == 12
    less = ("--reference", str(folders["bf16"]), "--path", "prefill", "--no-greedy")
    done = bench(*common, *less, "--out", str(original), timeout=800, **cache)
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = json.loads(original.read_text())["runs"]
    assert run["metrics"]["kl_over_floor"] > 20
