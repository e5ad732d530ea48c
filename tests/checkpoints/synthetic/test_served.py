"""Synthetic folders in vLLM: every format computes what its weights stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.edge_harness.fidelity import kl
from benchmarks.edge_harness.fidelity.folder_weights import decoder_of
from benchmarks.edge_harness.fidelity.logit_capture import LogitCapture
from tests.model.engine import engine
from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe

pytestmark = pytest.mark.engine

TOKENS = torch.randint(3, 1283, (4, 128), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "format", "head_bits", "method"),
    [
        ("tiny-llama", "bf16", None, None),
        ("tiny-qwen3", "packed", 8, "cpu_int4"),
        ("tiny-llama-untied", "packed", 4, "cpu_int4"),
        ("tiny-llama", "gptq", 16, "auto_gptq"),
        ("tiny-qwen3", "gptq", 4, "auto_gptq"),
    ],
)
def test_logits_are_those_of_the_folder_s_weights(
    name: str, format: str, head_bits: int | None, method: str | None, tmp_path: Path
) -> None:
    make_model(Recipe.checked(name, format=format, head_bits=head_bits), tmp_path / "m")
    plain = decoder_of(tmp_path / "m")
    reference = kl.ReferenceLogits(plain.logits(TOKENS))
    floor = kl.Divergence(reference)
    for window, rows in enumerate(plain.to(torch.bfloat16).logits_by_window(TOKENS)):
        floor.add(window, 0, rows)
    with engine(tmp_path / "m", enforce_eager=True, max_model_len=256) as llm:
        assert llm.llm_engine.vllm_config.model_config.quantization == method
        found = kl.Divergence(reference)
        LogitCapture(llm, TOKENS).prefill([0, 1, 2, 3], found.add)
    assert found.scored.all()
    # A wrong order of rows, group or zero-point is hundreds of times the floor.
    assert found.kl.mean().item() < 2 * floor.kl.mean().item()
