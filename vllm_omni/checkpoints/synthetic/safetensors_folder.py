"""A synthetic checkpoint as a Hugging Face folder: packed, bf16 or GPTQ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vllm_omni import int4
from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec, header_bytes
from vllm_omni.checkpoints.synthetic.geometries import Tensor, tensors
from vllm_omni.checkpoints.synthetic.model_config import generation_config, model_config
from vllm_omni.checkpoints.synthetic.recipe import LINEAR_BITS, UNQUANTIZED_BITS, Recipe
from vllm_omni.formats.affine import AffineCodes
from vllm_omni.layout import Segment
from vllm_omni.layout_header import LAYOUT_VERSION, PACKED_SUFFIX

INDEX_FILE = "model.safetensors.index.json"
_GPTQ_PARTS = ("qweight", "qzeros", "scales", "g_idx")
# GPTQ's first writers stored z − 1, and the zero-point of a symmetric code is 8: eight sevens to a word.
_GPTQ_ZEROS = 0x77777777

Written = Callable[[Tensor, torch.Tensor], None]
"""Called with each tensor and its original weight, once it is on disk."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the model and what the file holds of it, as ``bits`` (16: bfloat16)."""

    tensor: Tensor
    module: str
    bits: int
    specs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class WeightFile:
    name: str
    stored: tuple[StoredTensor, ...]
    aligned: bool

    @property
    def specs(self) -> list[TensorSpec]:
        return [spec for item in self.stored for spec in item.specs]

    @property
    def nbytes(self) -> int:
        return len(header_bytes(self.specs)) + sum(spec.nbytes for spec in self.specs)


def weight_files(recipe: Recipe) -> list[WeightFile]:
    """Everything that will be written. Packed tensors have a file of their own, so that they stay aligned."""
    stored = list(_stored(recipe))
    if recipe.format != "packed":
        return [WeightFile("model.safetensors", tuple(stored), aligned=False)]
    packed = tuple(item for item in stored if item.bits != UNQUANTIZED_BITS)
    plain = tuple(item for item in stored if item.bits == UNQUANTIZED_BITS)
    return [
        WeightFile("model-00001-of-00002.safetensors", packed, aligned=True),
        WeightFile("model-00002-of-00002.safetensors", plain, aligned=False),
    ]


def write(recipe: Recipe, files: list[WeightFile], folder: Path, written: Written) -> None:
    """Fill ``folder`` with weights, index and configuration."""
    digests = []
    for file in files:
        with SafetensorsWriter(folder / file.name, file.specs, aligned=file.aligned) as writer:
            for item in file.stored:
                original = recipe.original(item.tensor)
                for spec, values in zip(item.specs, _values(recipe, item, original), strict=True):
                    writer.write(spec.name, values.contiguous().view(torch.uint8).numpy().data)
                written(item.tensor, original)
        digests.append(writer.sha256)
    if len(files) > 1:
        _write_json(folder / INDEX_FILE, _index(files))
    config = model_config(recipe.geometry)
    if recipe.format == "packed":
        config["quantization_config"] = {
            "quant_method": "cpu_int4",
            "layout_version": LAYOUT_VERSION,
            "weights_digest": digests[0],
            "activation": "native",
            "ignore": _ignored(recipe),
        }
    elif recipe.format == "gptq":
        # vLLM looks for a quantized head under its own name only.
        config["tie_word_embeddings"] = recipe.geometry.tied and recipe.head_bits == UNQUANTIZED_BITS
        config["quantization_config"] = _gptq_config(recipe)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config())


def gptq_tensors(codes: AffineCodes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``qweight``, ``qzeros``, ``scales`` and ``g_idx`` of a symmetric 4-bit weight, format ``gptq``."""
    n, k = codes.codes.shape
    groups = codes.scales.shape[1]
    octets = codes.codes[:, 0::2] | codes.codes[:, 1::2] << 4
    return (
        octets.view(torch.int32).T.contiguous(),
        torch.full((groups, n // 8), _GPTQ_ZEROS, dtype=torch.int32),
        codes.scales.T.contiguous(),
        torch.arange(k, dtype=torch.int32) // codes.group_size,
    )


def _stored(recipe: Recipe) -> Iterator[StoredTensor]:
    table = None
    for tensor in tensors(recipe.geometry):
        table = tensor if tensor.role == "table" else table
        yield _as_stored(recipe, tensor, tensor.module, recipe.bits_of(tensor))
    if recipe.format == "gptq" and recipe.geometry.tied and recipe.head_bits != UNQUANTIZED_BITS:
        assert table is not None
        yield _as_stored(recipe, table, "lm_head", recipe.head_bits)


def _as_stored(recipe: Recipe, tensor: Tensor, module: str, bits: int) -> StoredTensor:
    if bits == UNQUANTIZED_BITS or recipe.format == "bf16":
        specs = [TensorSpec(f"{module}.weight", "BF16", tensor.shape)]
    elif recipe.format == "packed":
        nbytes = sum(_segment(recipe, rows, tensor.shape[1], bits).nbytes for rows in _parts(tensor))
        specs = [TensorSpec(module + PACKED_SUFFIX, "U8", (nbytes,))]
    else:
        n, k = tensor.shape
        groups = k // recipe.group_size
        shapes = ((k // 8, n), (groups, n // 8), (groups, n), (k,))
        dtypes = ("I32", "I32", "F16", "I32")
        specs = [
            TensorSpec(f"{module}.{part}", dtype, shape)
            for part, dtype, shape in zip(_GPTQ_PARTS, dtypes, shapes, strict=True)
        ]
    return StoredTensor(tensor, module, bits, tuple(specs))


def _parts(tensor: Tensor) -> tuple[int, ...]:
    return tensor.parts or tensor.shape[:1]


def _segment(recipe: Recipe, n: int, k: int, bits: int) -> Segment:
    return Segment(n, k, bits, recipe.group_size, scale_type="f16", zero_kind="none", permuted=False)


def _values(recipe: Recipe, item: StoredTensor, original: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if item.bits == UNQUANTIZED_BITS or recipe.format == "bf16":
        return (recipe.unquantized(item.tensor, original, torch.bfloat16),)
    if recipe.format == "gptq":
        return gptq_tensors(recipe.codes(original, item.bits))
    parts = [int4.pack(recipe.codes(rows, item.bits)) for rows in original.split(_parts(item.tensor))]
    return ((parts[0] if len(parts) == 1 else int4.PackedWeight.concat(parts)).data,)


def _ignored(recipe: Recipe) -> list[str]:
    names = [
        t.module
        for t in tensors(recipe.geometry)
        if len(t.shape) == 2 and recipe.bits_of(t) == UNQUANTIZED_BITS
    ]
    if recipe.geometry.tied and recipe.head_bits == UNQUANTIZED_BITS:
        names.append("lm_head")
    return names


def _gptq_config(recipe: Recipe) -> dict[str, Any]:
    gates = sorted({t.module.rpartition(".")[2] for t in tensors(recipe.geometry) if t.role == "gate"})
    return {
        "quant_method": "gptq",
        "bits": LINEAR_BITS,
        "group_size": recipe.group_size,
        "desc_act": False,
        "sym": True,
        "lm_head": recipe.head_bits != UNQUANTIZED_BITS,
        "checkpoint_format": "gptq",
    } | ({"dynamic": {f"-:.*\\.{gate}$": {} for gate in gates}} if gates else {})


def _index(files: list[WeightFile]) -> dict[str, Any]:
    weight_map = {spec.name: file.name for file in files for spec in file.specs}
    total = sum(spec.nbytes for file in files for spec in file.specs)
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
