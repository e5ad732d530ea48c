from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from benchmarks.edge_harness.artifact import file
from benchmarks.edge_harness.fidelity import kl, score
from benchmarks.edge_harness.fidelity.artifact import fidelity_artifact
from benchmarks.edge_harness.fidelity.greedy import compare, summary
from benchmarks.edge_harness.fidelity.measurement import Measured, Options
from benchmarks.edge_harness.fidelity.report import PhaseProgress, result_lines
from benchmarks.edge_harness.provenance.load import collect_load, now_utc
from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe


@pytest.fixture(scope="module")
def measured() -> Measured:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 40, (2, 320), generator=generator)
    reference = kl.ReferenceLogits(2 * torch.randn(2, 320, 40, generator=generator), tokens)
    paths = {}
    for path, scale in (("decode", 0.2), ("prefill", 0.1)):
        rows = []
        for seed in (1, 2):
            noise = torch.Generator().manual_seed(seed)
            divergence = kl.Divergence(reference)
            for window in range(2):
                divergence.add(
                    window, 0, reference.logits[window] + scale * torch.randn(320, 40, generator=noise)
                )
            rows.append(divergence)
        paths[path] = score.score(path, rows[0], rows[1], seed=0)
    found = summary([compare("plain_a", [1], [2, 3], [2, 3]), compare("plain_b", [1], [2, 3], [2, 4])])
    return Measured(
        paths=paths,
        greedy=found,
        kernels={"decode": {"gemv": 210, "rows": 1}, "prefill": {"gemm": 210, "rows": 1}},
        windows_sha256="00",
        times_s={"decode_s": 2.0, "prefill_s": 1.0},
    )


def options(model: Path, reference: Path | None) -> Options:
    return Options(
        model=model,
        reference=reference,
        windows=2,
        window_tokens=320,
        paths=("decode", "prefill"),
        batch=1,
        greedy=True,
        seed=0,
    )


def test_the_artifact_is_valid_and_names_no_folder(measured: Measured, tmp_path: Path) -> None:
    for format in ("packed", "bf16"):
        make_model(Recipe.checked("tiny-llama", format=format), tmp_path / format)
    before = collect_load(sorted(os.sched_getaffinity(0)))
    made = fidelity_artifact(
        options(tmp_path / "packed", tmp_path / "bf16"), measured, before=before, started_utc=now_utc()
    )
    out = tmp_path / "out" / "fidelity.json"
    file.write_new(out, made)
    read = file.read(out)
    assert read.kind == "fidelity"
    assert read.title == "fidelity: packed against bf16"
    assert [run.tag for run in read.runs] == ["decode", "prefill"]
    decode, prefill = read.runs
    assert decode.metrics["kl_mean_nats"] > prefill.metrics["kl_mean_nats"] > 0
    assert decode.reported["floor"]["kl_mean_nats"]["value"] > 0
    assert read.arms[0].kernels == {"gemv": 210, "rows": 1, "gemm": 210}
    assert read.arms[0].model is not None
    assert read.arms[0].model.head_bits == 8
    assert read.result is not None
    assert read.result["reference"]["model"]["id"] == "bf16"
    assert read.result["greedy"]["detail"][1]["first_divergence"] == 1
    assert any("cost of quantization" in note for note in read.notes)
    assert str(tmp_path / "packed") not in json.dumps(read.model_dump(exclude={"command", "arms"}))


def test_without_a_reference_the_artifact_says_what_it_was_held_against(
    measured: Measured, tmp_path: Path
) -> None:
    make_model(Recipe.checked("tiny-llama", format="packed"), tmp_path / "m")
    before = collect_load(sorted(os.sched_getaffinity(0)))
    made = fidelity_artifact(options(tmp_path / "m", None), measured, before=before, started_utc=now_utc())
    assert made.title == "fidelity: m against own weights"
    assert made.notes == []


def test_figures_are_shown_with_interval_and_floor(measured: Measured) -> None:
    lines = result_lines(measured)
    assert lines[0] == "decode: 638 tokens, intervals of 95%"
    assert all("; floor " in line for line in lines if line.startswith("  kl_mean") or "perplexity" in line)
    assert "greedy: 1 of 2 prompts exact over 2 tokens, 75.0% before the first that differs" in lines


def test_progress_elsewhere_than_on_a_terminal_is_a_line_a_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with PhaseProgress() as progress:
        for done in range(3):
            progress("prefill", done, 2)
        progress("decode", 0, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["fidelity: prefill ...", "fidelity: decode ..."]
