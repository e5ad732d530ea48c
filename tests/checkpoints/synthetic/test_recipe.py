from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vllm_omni.checkpoints.synthetic.geometries import GEOMETRIES, geometry
from vllm_omni.checkpoints.synthetic.recipe import Recipe
from vllm_omni.errors import OmniError


def test_defaults() -> None:
    packed = Recipe.checked("qwen3-1.7b", format="packed")
    assert (packed.group_size, packed.head_bits) == (128, 8)
    gptq = Recipe.checked("qwen3-1.7b", format="gptq")
    assert (gptq.group_size, gptq.head_bits) == (128, 16)
    plain = Recipe.checked("qwen3-1.7b", format="bf16")
    assert (plain.group_size, plain.head_bits) == (0, 0)
    # 576 inputs are no multiple of 128.
    assert Recipe.checked("smollm2-135m", format="packed").group_size == 64


def test_a_head_that_vllm_would_have_to_pad_is_not_quantized_as_gptq(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(geometry("tiny-llama"), name="odd", vocab=2016)
    monkeypatch.setitem(GEOMETRIES, row.name, row)
    with pytest.raises(OmniError, match="--head-bits 4: expected 16 with --format gptq"):
        Recipe.checked("odd", format="gptq", head_bits=4)
    assert Recipe.checked("odd", format="packed", head_bits=4).head_bits == 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tiny", {"format": "packed"}, "GEOMETRY: expected one of .*; found 'tiny'"),
        (
            "tiny-llama",
            {"format": "fp8"},
            "--format: expected one of packed, bf16, gptq, gguf-f16; found 'fp8'",
        ),
        ("tiny-llama", {"format": "packed", "seed": -1}, "--seed: expected a whole number from 0, found -1"),
        ("tiny-llama", {"format": "packed", "group_size": 96}, "--group-size: expected one of 128, 64, 32"),
        (
            "smollm2-135m",
            {"format": "gptq", "group_size": 128},
            "--group-size 128: model.embed_tokens.weight of smollm2-135m has 576 inputs",
        ),
        (
            "tiny-llama",
            {"format": "gptq", "head_bits": 8},
            "--head-bits 8: expected 4 or 16 with --format gptq",
        ),
        ("tiny-llama", {"format": "packed", "head_bits": 2}, "--head-bits 2: expected 4 or 8 or 16"),
        ("tiny-llama", {"format": "bf16", "group_size": 64}, "--group-size: expected none: --format bf16"),
        (
            "tiny-llama",
            {"format": "gguf-f16", "head_bits": 8},
            "--head-bits: expected none: --format gguf-f16",
        ),
        (
            "tiny-llama",
            {"format": "packed", "quantized": True},
            "--quantized-weights: expected --format bf16 or gguf-f16, found packed",
        ),
        ("spark-1.7b", {"format": "gguf-f16"}, "--format gguf-f16: the gguf library has no architecture"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OmniError, match=message) as caught:
        Recipe.checked(name, **options)
    assert "\n" not in str(caught.value)
