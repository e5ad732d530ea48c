"""The formats against each other: the same seed is the same model, whatever the folder looks like."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vllm_omni import int4
from vllm_omni.checkpoints.gguf_source import GgufSource
from vllm_omni.checkpoints.packed_file import validate_packed_file
from vllm_omni.checkpoints.synthetic import safetensors_folder
from vllm_omni.checkpoints.synthetic.make import RECORD_NAME, make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe
from vllm_omni.errors import OmniError
from vllm_omni.quantization.packed_folder import read_packed_folder

NAMES = ("tiny-llama", "tiny-llama-untied", "tiny-qwen3")


class Made:
    """Folders by geometry and options, each made once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[tuple[Any, ...], Path] = {}

    def __call__(self, name: str, format: str, **options: Any) -> Path:
        key = (name, format, *sorted(options.items()))
        if key not in self._made:
            folder = self._root / f"model-{len(self._made)}"
            make_model(Recipe.checked(name, format=format, **options), folder)
            self._made[key] = folder
        return self._made[key]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("synthetic"))


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / RECORD_NAME).read_text())


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def bf16(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def packed(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of a packed folder, fp32."""
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            module, _, kind = name.rpartition(".")
            is_packed = kind == "weight_packed"
            weights[module] = int4.PackedWeight(tensor).dequantize() if is_packed else tensor.float()
    return weights


def gptq(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of a GPTQ folder, fp32, read as the format is described."""
    stored = load_file(folder / "model.safetensors")
    weights = {
        name.removesuffix(".weight"): t.float() for name, t in stored.items() if name.endswith(".weight")
    }
    for name in stored:
        if not name.endswith(".qweight"):
            continue
        module = name.removesuffix(".qweight")
        words = stored[name].numpy().view(np.uint32)
        codes = np.stack([words >> shift & 15 for shift in range(0, 32, 4)], axis=1).reshape(
            -1, words.shape[1]
        )
        zeros = stored[f"{module}.qzeros"].numpy().view(np.uint32)
        assert np.all(zeros == 0x77777777)
        scales = stored[f"{module}.scales"].double().numpy()
        group = stored[f"{module}.g_idx"].numpy()
        dense = (codes.astype(np.float64) - 8) * scales[group]
        weights[module] = torch.from_numpy(dense.T.copy()).float()
    return weights


@pytest.mark.parametrize("name", NAMES)
def test_the_original_weights_are_one_in_every_format(name: str, made: Made) -> None:
    folders = [made(name, format) for format in ("packed", "bf16", "gptq", "gguf-f16")]
    assert len({record(folder)["original_weights_sha256"] for folder in folders}) == 1
    assert (
        record(made(name, "bf16", seed=1))["original_weights_sha256"]
        != record(folders[0])["original_weights_sha256"]
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group_size", [32, 128])
def test_both_4_bit_formats_stand_for_the_same_weights(name: str, group_size: int, made: Made) -> None:
    ours = packed(made(name, "packed", head_bits=16, group_size=group_size))
    theirs = gptq(made(name, "gptq", group_size=group_size))
    assert ours.keys() == theirs.keys()
    for module, values in ours.items():
        assert torch.equal(values, theirs[module]), module


def test_a_head_of_4_bits_is_the_same_too(made: Made) -> None:
    ours = packed(made("tiny-llama", "packed", head_bits=4))
    folder = made("tiny-llama", "gptq", head_bits=4)
    assert torch.equal(ours["model.embed_tokens"], gptq(folder)["lm_head"])
    assert config(folder)["tie_word_embeddings"] is False
    assert config(folder)["quantization_config"]["lm_head"] is True


@pytest.mark.parametrize("name", NAMES)
def test_quantization_is_near_the_original_and_not_it(name: str, made: Made) -> None:
    original, ours = bf16(made(name, "bf16")), packed(made(name, "packed"))
    for module, values in ours.items():
        exact = original[f"{module}.weight"].float()
        error = (values - exact).norm() / exact.norm()
        if exact.ndim == 1:
            assert error == 0, module
        elif module in ("model.embed_tokens", "lm_head"):
            assert 1e-3 < error < 0.01, module
        else:
            assert 0.05 < error < 0.15, module


@pytest.mark.parametrize("name", NAMES)
def test_gguf_holds_the_same_numbers(name: str, made: Made) -> None:
    (file,) = made(name, "gguf-f16").glob("*.gguf")
    original = bf16(made(name, "bf16"))
    heads = {"q_proj": 4, "k_proj": 2}
    source = GgufSource(file)
    names = gguf.get_tensor_name_map(
        {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}[source.architecture], 2
    )
    assert len(source.tensors) == len(original)
    for name_, values in original.items():
        module = name_.removesuffix(".weight")
        tensor = source.tensors[f"{names.get_name(module)}.weight"]
        assert tensor.type_name == ("F32" if values.ndim == 1 else "F16")
        rows = values.float()
        interleaved = heads.get(module.rpartition(".")[2]) if source.architecture == "llama" else None
        if interleaved:
            half = rows.shape[0] // interleaved // 2
            order = [
                h * 2 * half + s * half + j for h in range(interleaved) for j in range(half) for s in (0, 1)
            ]
            rows = rows[order]
        assert np.array_equal(tensor.floats(), rows.numpy()), name_


def test_quantized_weights_can_be_stored_unquantized(made: Made) -> None:
    ours = packed(made("tiny-llama", "packed", head_bits=4))
    rounded = bf16(made("tiny-llama", "bf16", quantized=True, head_bits=4))
    for module, values in ours.items():
        assert torch.equal(rounded[f"{module}.weight"], values.bfloat16()), module
    (file,) = made("tiny-llama", "gguf-f16", quantized=True, head_bits=4).glob("*.gguf")
    exact = GgufSource(file).tensors["blk.1.ffn_down.weight"].floats()
    assert np.array_equal(exact, ours["model.layers.1.mlp.down_proj"].numpy())


def test_the_packed_folder_is_whole(made: Made) -> None:
    folder = made("tiny-llama", "packed")
    first, second = sorted(folder.glob("*.safetensors"))
    assert len(validate_packed_file(first)) == 15
    assert validate_packed_file(second) == []
    found = read_packed_folder(folder)
    assert found.is_cpu_int4
    assert {bits for tensor in found.packed.values() for bits in tensor.bits} == {4, 8}
    assert record(folder)["files"][first.name] == first.stat().st_size


def test_modules_that_stay_unquantized_are_named(made: Made) -> None:
    quantization = config(made("tiny-llama", "packed", head_bits=16))["quantization_config"]
    assert quantization["ignore"] == ["model.embed_tokens", "lm_head"]
    assert config(made("tiny-llama", "packed"))["quantization_config"]["ignore"] == []


def test_llama3_rotary_scaling_travels_in_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_omni.checkpoints.gguf_config import architecture_of, model_config
    from vllm_omni.checkpoints.synthetic.geometries import GEOMETRIES, geometry

    rule = geometry("llama-1b").rope_scaling
    row = replace(geometry("tiny-llama"), name="tiny-scaled", rope_scaling=rule, rope_theta=5e5)
    monkeypatch.setitem(GEOMETRIES, row.name, row)
    for format in ("bf16", "gguf-f16"):
        make_model(Recipe.checked(row.name, format=format), tmp_path / format)
    assert config(tmp_path / "bf16")["rope_scaling"] == rule
    (file,) = (tmp_path / "gguf-f16").glob("*.gguf")
    source = GgufSource(file)
    assert model_config(source, architecture_of(source))["rope_scaling"] == rule


def test_a_spark_folder_says_that_it_cannot_be_served(made: Made) -> None:
    folder = made("tiny-spark", "packed")
    assert record(folder)["served"] is False
    assert "cannot be served yet" in record(folder)["note"]
    settings = config(folder)
    assert settings["architectures"] == ["Spark2_5ForCausalLM"]
    assert settings["layer_types"] == ["sliding_attention"] * 3 + ["full_attention"]
    assert settings["rope_parameters"]["full_attention"]["partial_rotary_factor"] == 0.25
    assert all("g_proj" in name for name in settings["quantization_config"]["ignore"])
    # One segment for each of q, k and v, so that the fused tensor can be split.
    weight = load_file(sorted(folder.glob("*.safetensors"))[0])[
        "model.layers.0.self_attn.q_k_v_proj.weight_packed"
    ]
    assert [segment.n for segment in int4.PackedWeight(weight).segments] == [256, 64, 64]
    assert record(made("tiny-llama", "packed"))["served"] is True


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_model(Recipe.checked("tiny-llama", format="bf16"), tmp_path / "m", lambda *at: seen.append(at))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len({total for _, total in seen}) == 1
    assert 0.95 < seen[-1][0] / seen[-1][1] <= 1


def test_an_existing_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="exists already"):
        make_model(Recipe.checked("tiny-llama", format="bf16"), tmp_path)


def test_a_full_disk_is_told_before_and_during(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.checked("tiny-llama", format="packed")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
        with pytest.raises(OmniError, match=r"not enough disk space: needs [\d,]+ bytes, 5 are free"):
            make_model(recipe, tmp_path / "m")

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors_folder, "write", fail)
    with pytest.raises(OmniError, match="the disk is full"):
        make_model(recipe, tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_model(Recipe.checked("tiny-llama", format="bf16"), tmp_path / "m", interrupt)
    assert os.listdir(tmp_path) == []


def test_memory_is_that_of_one_tensor(tmp_path: Path) -> None:
    """Four layers take what one takes: a few times the largest tensor, which is a small part of the model."""
    program = """
import resource, sys
from dataclasses import replace
from pathlib import Path
from vllm_omni.checkpoints.synthetic.geometries import GEOMETRIES, geometry
from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe
row = replace(geometry("tiny-llama"), name="wide", hidden=2048, inner=8192, layers=int(sys.argv[2]))
GEOMETRIES["wide"] = row
make_model(Recipe.checked("tiny-llama", format="packed"), Path(sys.argv[1]) / "warm")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
make_model(Recipe.checked("wide", format="packed"), Path(sys.argv[1]) / "wide")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    grown = {}
    for layers in (1, 4):
        folder = tmp_path / str(layers)
        folder.mkdir()
        command = [sys.executable, "-c", program, str(folder), str(layers)]
        grown[layers] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    one_tensor_bytes = 2 * 2048 * 8192
    assert grown[4] < 5 * one_tensor_bytes
    assert grown[4] - grown[1] < one_tensor_bytes
