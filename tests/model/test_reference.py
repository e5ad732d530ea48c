"""The reference is itself checked: against transformers, and for being able to fail a wrong model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.edge_harness.fidelity import kl
from benchmarks.edge_harness.fidelity.reference import Decoder

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def transformers_model(model_gguf: Path) -> torch.nn.Module:
    """transformers' llama with transformers' own conversion of the same GGUF, in fp32.

    The tensors are loaded here because `from_pretrained(gguf_file=...)` asks for the accelerate package.
    """
    from transformers import AutoConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(model_gguf.parent, gguf_file=model_gguf.name)
    model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(str(model_gguf), return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict(tensors, strict=False)
    assert loaded.missing_keys == ["lm_head.weight"]
    assert loaded.unexpected_keys == []
    model.tie_weights()
    return model.float().eval()


def test_reference_equals_transformers(
    transformers_model: torch.nn.Module, reference: kl.ReferenceLogits, windows: torch.Tensor
) -> None:
    with torch.inference_mode():
        logits = torch.cat([transformers_model(window[None]).logits for window in windows[:2]])
    divergence = kl.Divergence(reference)
    for window in range(2):
        divergence.add(window, 0, logits[window])
    assert divergence.kl[:2].max().item() < 1e-8
    torch.testing.assert_close(reference.logits[:2], logits, atol=2e-3, rtol=0)


def test_interleaved_rows_would_be_noticed(
    reference_model: Decoder, reference: kl.ReferenceLogits, windows: torch.Tensor
) -> None:
    """A q whose row order is not undone is far from the reference: the order matters to this comparison."""
    swapped = reference_model.with_tensor(
        "blk.0.attn_q.weight", lambda w: w.view(9, 2, 32, -1).transpose(1, 2).reshape(w.shape)
    )
    divergence = kl.Divergence(reference)
    divergence.add(0, 0, swapped.logits(windows[:1])[0])
    assert divergence.kl[0].mean().item() > 1e-2


def test_floor_is_a_bf16_engine_s(floor: kl.Divergence) -> None:
    """The floor is noise of rounding: present in every window, small, and silent where the margin is safe."""
    assert floor.scored.all()
    assert (floor.kl.mean(dim=1) > 1e-5).all()
    assert floor.kl.mean().item() < 1e-2
    assert floor.reference.margin[floor.disagrees].max().item() <= kl.SAFE_MARGIN


def test_floor_passes_its_own_verdict(floor: kl.Divergence) -> None:
    verdict = kl.judge("floor", floor, floor)
    assert verdict.failures == []
    assert verdict.tokens >= 2048


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda weight: weight * 1.1, id="scales 10 % off"),
        pytest.param(lambda weight: weight + weight.abs().max() / 15, id="zero-points one off"),
    ],
)
def test_one_wrong_layer_fails(
    change: Callable[[torch.Tensor], torch.Tensor],
    reference_model: Decoder,
    diverge: Callable[..., kl.Divergence],
    floor: kl.Divergence,
) -> None:
    wrong = reference_model.with_tensor("blk.15.ffn_down.weight", change).to(torch.bfloat16)
    verdict = kl.judge("one wrong layer", diverge(wrong, 2), floor)
    assert verdict.ratio > kl.KL_RATIO_LIMIT
    assert verdict.failures
