from __future__ import annotations

import hashlib

import pytest
import torch

from vllm_omni.checkpoints.synthetic.geometries import Tensor, geometry, tensors
from vllm_omni.checkpoints.synthetic.random_weights import weight

TINY = geometry("tiny-llama")
LINEAR = Tensor("model.layers.0.mlp.up_proj.weight", (512, 256), "linear")


def digest(values: torch.Tensor) -> str:
    return hashlib.sha256(values.view(torch.int16).numpy().tobytes()).hexdigest()


def test_weights_are_the_same_on_every_machine() -> None:
    """A changed digest changes every synthetic checkpoint: results measured on them are then incomparable."""
    assert digest(weight(LINEAR, TINY, 0)).startswith("c7a394882bf9e96d")
    norm = Tensor("model.norm.weight", (256,), "norm")
    assert digest(weight(norm, TINY, 7)).startswith("bf7d577c64dd15a2")


def test_weights_depend_on_seed_and_name_alone() -> None:
    first = weight(LINEAR, TINY, 3)
    assert torch.equal(first, weight(LINEAR, TINY, 3))
    assert not torch.equal(first, weight(LINEAR, TINY, 4))
    other = Tensor("model.layers.1.mlp.up_proj.weight", (512, 256), "linear")
    assert not torch.equal(first, weight(other, TINY, 3))


def test_a_longer_tensor_continues_a_shorter_one() -> None:
    """Pieces are an implementation detail: lengths around their bounds give the same stream."""
    long = weight(Tensor("x.weight", (3 * 65536 + 10,), "norm"), TINY, 0)
    for count in (1, 3, 65535, 65536, 65537, 2 * 65536 + 2):
        assert torch.equal(weight(Tensor("x.weight", (count,), "norm"), TINY, 0), long[:count])


@pytest.mark.parametrize("tensor", list(tensors(TINY)), ids=lambda tensor: tensor.name)
def test_values_are_exact_in_both_sixteen_bit_types(tensor: Tensor) -> None:
    values = weight(tensor, TINY, 0)
    assert values.dtype == torch.bfloat16
    assert values.shape == tensor.shape
    assert torch.equal(values.float().half().float(), values.float())


def test_values_are_normal_and_of_the_scale_of_their_inputs() -> None:
    values = weight(LINEAR, TINY, 0).double().flatten()
    assert values.std().item() == pytest.approx(256**-0.5, rel=0.01)
    assert values.mean().abs().item() < 3 * 256**-0.5 / values.numel() ** 0.5
    kurtosis = (values**4).mean() / (values**2).mean() ** 2
    assert kurtosis.item() == pytest.approx(3.0, abs=0.1)
    share_within_one = (values.abs() < values.std()).double().mean().item()
    assert share_within_one == pytest.approx(0.683, abs=0.01)
    norms = weight(Tensor("n.weight", (4096,), "norm"), TINY, 0).float()
    assert norms.mean().item() == pytest.approx(1.0, abs=0.01)
    assert 0.08 < norms.std().item() < 0.12
