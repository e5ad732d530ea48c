"""A packed folder as a bf16 one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from benchmarks.edge_harness.adapters import bf16_checkpoint
from benchmarks.edge_harness.adapters.bf16_checkpoint import write_bf16
from tests.quantization.tiny_checkpoint import TinyCheckpoint
from vllm_omni.errors import OmniError


def test_the_weights_are_what_the_packed_ones_dequantize_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than one block of rows for every weight.
    monkeypatch.setattr(bf16_checkpoint, "ROWS", 100)
    reference = TinyCheckpoint(dtype=torch.bfloat16).write(tmp_path / "packed")
    write_bf16(tmp_path / "packed", tmp_path / "bf16")
    with safe_open(tmp_path / "bf16" / "model.safetensors", framework="pt") as file:
        written = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    expected = {name: tensor for name, tensor in reference.state_dict().items() if name != "lm_head.weight"}
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(written[name], tensor.to(torch.bfloat16)), name


def test_transformers_loads_the_folder(tmp_path: Path) -> None:
    TinyCheckpoint(tied=False).write(tmp_path / "packed")
    write_bf16(tmp_path / "packed", tmp_path / "bf16")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16")
    assert loaded.dtype == torch.bfloat16
    assert not hasattr(loaded.config, "quantization_config")
    names = {path.name for path in (tmp_path / "bf16").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= names
    assert "model.safetensors.index.json" not in names


def test_other_folders_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    TinyCheckpoint(fused=True).write(tmp_path / "fused")
    with pytest.raises(OmniError, match="expected separate projections"):
        write_bf16(tmp_path / "fused", tmp_path / "out")
    TinyCheckpoint().write(tmp_path / "packed")
    write_bf16(tmp_path / "packed", tmp_path / "bf16")
    with pytest.raises(OmniError, match="expected a cpu_int4 folder"):
        write_bf16(tmp_path / "bf16", tmp_path / "out")
    with pytest.raises(OmniError, match="exists already"):
        write_bf16(tmp_path / "packed", tmp_path / "bf16")
    assert {path.name for path in tmp_path.iterdir()} == {"fused", "packed", "bf16"}
