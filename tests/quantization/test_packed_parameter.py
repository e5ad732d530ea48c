from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from vllm_omni import int4
from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec
from vllm_omni.errors import FormatError
from vllm_omni.quantization.packed_parameter import PackedShards, Shard, join

K = 64


def packed(n: int, k: int = K, bits: int = 4) -> int4.PackedWeight:
    return int4.quantize(torch.randn(n, k), group_size=32, bits=bits)


def write(file: Path, weights: dict[str, int4.PackedWeight]) -> dict[str, torch.Tensor]:
    """The weights in a file in this order, and as vLLM's loader reads them: mapped, one storage each."""
    specs = [TensorSpec(name, "U8", (weight.nbytes,)) for name, weight in weights.items()]
    with SafetensorsWriter(file, specs, aligned=True) as writer:
        for name, weight in weights.items():
            writer.write(name, weight.to_bytes())
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in weights}


def shards(**n: int) -> list[Shard]:
    return [Shard(ident, f"{ident}_proj.weight_packed", count) for ident, count in n.items()]


def address(parameter: torch.nn.Parameter) -> int:
    return parameter.data_ptr()


@pytest.mark.parametrize("order", ["qkv", "vqk", "kvq"])
def test_adjacent_shards_become_one_view_of_the_file(tmp_path: Path, order: str) -> None:
    weights = {"q": packed(48), "k": packed(16), "v": packed(20, bits=8)}
    loaded = write(tmp_path / "w.safetensors", weights)
    layer = PackedShards("layer", shards(q=48, k=16, v=20), K)
    parameter = layer.parameter()
    for name in order:
        parameter.weight_loader(parameter, loaded[name], name)
    layer.prove_filled()
    assert address(parameter) == loaded["q"].data_ptr()
    assert layer.bits == (4, 4, 8)
    expected = torch.cat([weight.dequantize() for weight in weights.values()])
    del loaded
    assert torch.equal(int4.PackedWeight(parameter.data).dequantize(), expected)


def test_a_view_keeps_the_mapping_alive(tmp_path: Path) -> None:
    loaded = write(tmp_path / "w.safetensors", {"a": packed(16), "b": packed(16)})
    before = torch.cat([loaded["a"], loaded["b"]])
    view = join([loaded["a"], loaded["b"]])
    loaded.clear()
    mapped = f"{view.data_ptr():x}"
    assert torch.equal(view, before)
    ranges = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "w.safetensors" in line
    ]
    assert any(int(low, 16) <= int(mapped, 16) < int(high, 16) for low, high in ranges)


def test_shards_apart_are_copied_once(tmp_path: Path) -> None:
    weights = {"k": packed(16), "q": packed(48)}
    loaded = write(tmp_path / "w.safetensors", weights)
    layer = PackedShards("layer", shards(q=48, k=16), K)
    parameter = layer.parameter()
    for name, tensor in loaded.items():
        parameter.weight_loader(parameter, tensor, name)
    layer.prove_filled()
    expected = torch.cat([weights["q"].dequantize(), weights["k"].dequantize()])
    assert torch.equal(int4.PackedWeight(parameter.data).dequantize(), expected)


def test_bytes_that_words_cannot_be_read_from_are_moved() -> None:
    weight = packed(16)
    shifted = torch.zeros(weight.nbytes + 1, dtype=torch.uint8)[1:]
    shifted.copy_(weight.data)
    assert shifted.data_ptr() % 4
    moved = join([shifted])
    assert moved.data_ptr() % 4 == 0
    assert torch.equal(moved, weight.data)


def test_a_layer_that_is_stored_fused() -> None:
    whole = int4.PackedWeight.concat([packed(48), packed(16)])
    layer = PackedShards("layer", shards(q=48, k=16), K)
    parameter = layer.parameter()
    parameter.weight_loader(parameter, whole.data)
    layer.prove_filled()
    assert address(parameter) == whole.data.data_ptr()


def test_a_tensor_that_covers_some_of_the_shards() -> None:
    layer = PackedShards("layer", [Shard(i, f"part{i}", n) for i, n in enumerate((16, 32, 48))], K)
    parameter = layer.parameter()
    last, first = packed(48), int4.PackedWeight.concat([packed(16), packed(32)])
    parameter.weight_loader(parameter, last.data, 2)
    with pytest.raises(FormatError, match=r"no part0, part1: 1 of the layer's 3"):
        layer.prove_filled()
    parameter.weight_loader(parameter, first.data, (0, 1))
    layer.prove_filled()
    assert int4.PackedWeight(parameter.data).shape == (96, K)


def test_weights_can_be_loaded_anew() -> None:
    layer = PackedShards("layer", shards(q=16, k=16), K)
    parameter = layer.parameter()
    for _ in range(2):
        weights = [packed(16), packed(16)]
        for ident, weight in zip("qk", weights, strict=True):
            parameter.weight_loader(parameter, weight.data, ident)
        expected = torch.cat([weight.dequantize() for weight in weights])
        assert torch.equal(int4.PackedWeight(parameter.data).dequantize(), expected)
    parameter.weight_loader(parameter, packed(16).data, "q")
    with pytest.raises(FormatError, match="no k_proj"):
        layer.prove_filled()


def flipped(weight: int4.PackedWeight) -> torch.Tensor:
    data = weight.data.clone()
    data[200] ^= 1
    return data


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            lambda: torch.randn(16, K),
            r"expected packed bytes \(uint8, one dimension\), found torch.float32 \[16, 64\]",
        ),
        (lambda: torch.zeros(4, 4, dtype=torch.uint8), r"found torch.uint8 \[4, 4\]"),
        (lambda: flipped(packed(16)), "checksum"),
        (lambda: packed(16).data[:-64], "(?i)truncated|bytes"),
        (lambda: torch.zeros(0, dtype=torch.uint8), "q_proj"),
        (lambda: packed(32).data, "expected 16 outputs of 64 inputs, found 32 of 64"),
        (lambda: packed(16, k=32).data, "expected 16 outputs of 64 inputs, found 16 of 32"),
    ],
)
def test_a_bad_shard_is_named(tensor, message: str) -> None:
    layer = PackedShards("model.layers.0.qkv_proj", shards(q=16, k=16), K, lambda tensor: "model.safetensors")
    parameter = layer.parameter()
    with pytest.raises(FormatError, match=message) as refused:
        parameter.weight_loader(parameter, tensor(), "q")
    assert str(refused.value).startswith("model.safetensors: tensor 'q_proj.weight_packed': ")
    assert "\n" not in str(refused.value)


def test_an_unknown_shard_is_named() -> None:
    layer = PackedShards("layer", shards(q=16, k=16), K)
    parameter = layer.parameter()
    with pytest.raises(FormatError, match="no shard 'x', expected one of"):
        parameter.weight_loader(parameter, packed(16).data, "x")
