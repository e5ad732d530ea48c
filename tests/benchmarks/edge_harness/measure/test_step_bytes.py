"""Bytes of a decode step, from a folder's headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.measure.step_bytes import step_bytes
from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec

HIDDEN, VOCABULARY = 8, 100
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
TABLE_BYTES = VOCABULARY * HIDDEN * 2
LAYER_BYTES = HIDDEN * HIDDEN * 2


def folder(path: Path, names: list[str], **config: Any) -> Path:
    specs = [
        TensorSpec(name, "BF16", (VOCABULARY if "embed" in name or "head" in name else HIDDEN, HIDDEN))
        for name in names
    ]
    path.mkdir()
    with SafetensorsWriter(path / "model.safetensors", specs) as writer:
        for spec in specs:
            writer.write(spec.name, bytes(spec.shape[0] * spec.shape[1] * 2))
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    return path


def test_a_tied_table_is_read_as_the_head(tmp_path: Path) -> None:
    names = ["model.embed_tokens.weight", "model.layers.0.q_proj.weight"]
    found = step_bytes(folder(tmp_path / "m", names, tie_word_embeddings=True))
    assert found.weight_bytes == TABLE_BYTES + LAYER_BYTES


@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": False}])
def test_a_table_beside_a_head_is_read_by_rows(tmp_path: Path, config: dict[str, Any]) -> None:
    names = ["model.embed_tokens.weight", "model.layers.0.q_proj.weight", "lm_head.weight"]
    found = step_bytes(folder(tmp_path / "m", names, **config))
    assert found.weight_bytes == TABLE_BYTES + LAYER_BYTES


def test_keys_and_values_count_per_sequence_and_token(tmp_path: Path) -> None:
    found = step_bytes(folder(tmp_path / "m", ["model.layers.0.q_proj.weight"]))
    # Keys and values, 3 layers, 2 heads of 16, bf16.
    assert found.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2
    assert found.read_bytes(10, batch=4) == LAYER_BYTES + 4 * 10 * 384


@pytest.mark.parametrize(
    ("options", "element_bytes"),
    [({}, 2), ({"kv_cache_dtype": "auto"}, 2), ({"kv_cache_dtype": "fp8_e5m2"}, 1), ({"dtype": "half"}, 2)],
)
def test_the_cache_has_the_type_that_was_asked_for(
    tmp_path: Path, options: dict[str, str], element_bytes: int
) -> None:
    found = step_bytes(folder(tmp_path / "m", ["model.layers.0.q_proj.weight"]), options)
    assert found.kv_bytes_per_token == 192 * element_bytes
    assert found.weight_bytes == LAYER_BYTES


def test_weights_that_are_converted_have_no_figure(tmp_path: Path) -> None:
    found = step_bytes(folder(tmp_path / "m", ["model.layers.0.q_proj.weight"]), {"dtype": "float32"})
    assert found.weight_bytes is None
    assert found.kv_bytes_per_token == 192 * 4
    assert "dtype float32" in (found.why or "")


def test_a_mixture_of_experts_has_no_figure(tmp_path: Path) -> None:
    found = step_bytes(folder(tmp_path / "m", ["model.layers.0.q_proj.weight"], num_local_experts=8))
    assert found.weight_bytes is None
    assert found.read_bytes(10, 1) is None
    assert found.why is not None
    assert "experts" in found.why
