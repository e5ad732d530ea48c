"""A fidelity figure must be able to fail: one damaged layer of a model is seen, whatever the damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.edge_harness.fidelity import kl, score
from benchmarks.edge_harness.fidelity.folder_weights import decoder_of
from benchmarks.edge_harness.fidelity.reference import Decoder
from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe

WINDOWS, TOKENS = 4, 192


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("damage") / "m"
    make_model(Recipe.checked("tiny-qwen3", format="packed"), folder)
    return decoder_of(folder).to(torch.float32)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(3, 1283, (WINDOWS, TOKENS), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def reference(model: Decoder, tokens: torch.Tensor) -> kl.ReferenceLogits:
    return kl.ReferenceLogits(model.logits(tokens), tokens)


def diverge(model: Decoder, reference: kl.ReferenceLogits) -> kl.Divergence:
    assert reference.tokens is not None
    divergence = kl.Divergence(reference)
    for window, rows in enumerate(model.to(torch.bfloat16).logits_by_window(reference.tokens)):
        divergence.add(window, 0, rows)
    return divergence


@pytest.fixture(scope="module")
def floor(model: Decoder, reference: kl.ReferenceLogits) -> kl.Divergence:
    return diverge(model, reference)


def test_the_intact_model_is_at_the_floor(floor: kl.Divergence) -> None:
    found = score.score("intact", floor, floor, seed=0)
    assert found["kl_over_floor"] == pytest.approx(1)
    assert found["verdict"]["failures"] == []


@pytest.mark.parametrize(
    ("tensor", "change"),
    [
        pytest.param("blk.1.ffn_down.weight", lambda w: w * 1.1, id="scales 10 % off"),
        pytest.param("blk.0.attn_v.weight", lambda w: w + w.abs().max() / 15, id="zero-points one off"),
        pytest.param("blk.1.ffn_up.weight", lambda w: w.roll(1, 0), id="rows one off"),
        pytest.param("blk.0.attn_q_norm.weight", torch.ones_like, id="norm not loaded"),
    ],
)
def test_one_damaged_tensor_is_seen(
    tensor: str,
    change: Callable[[torch.Tensor], torch.Tensor],
    model: Decoder,
    reference: kl.ReferenceLogits,
    floor: kl.Divergence,
) -> None:
    found = score.score("damaged", diverge(model.with_tensor(tensor, change), reference), floor, seed=0)
    assert found["intervals"]["kl_over_floor"]["low"] > kl.KL_RATIO_LIMIT
    assert found["verdict"]["failures"]
