"""The weights of a model folder, dequantized to fp32 when they are asked for: plain, packed or GPTQ.

Packed weights are read by the layout's own description in Python, not by the kernels that the measurement is
about.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.edge_harness.fidelity.reference import ARCHITECTURES, Decoder, Shape
from vllm_omni import layout
from vllm_omni.checkpoints.safetensors_file import read_header
from vllm_omni.errors import FormatError
from vllm_omni.formats import gptq
from vllm_omni.formats.affine import AffineCodes, middle
from vllm_omni.layout_header import PACKED_SUFFIX
from vllm_omni.quantization.packed_folder import read_config, read_packed_folder

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def decoder_of(folder: Path) -> Decoder:
    """The plain forward of a model folder. Raises ``FormatError`` for what it does not compute."""
    config = read_config(folder)
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise FormatError(
            f"{folder}/config.json: model_type: expected {' or '.join(ARCHITECTURES)}, found {kind!r}"
        )
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise FormatError(f"{folder}/config.json: {key}: expected false, found {config[key]!r}")
    heads = int(config["num_attention_heads"])
    rope = config.get("rope_parameters") or {}
    shape = Shape(
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        norm_epsilon=float(config["rms_norm_eps"]),
    )
    divisors = _rope_divisors(folder, config.get("rope_scaling") or rope, shape)
    shape = Shape(**{**shape.__dict__, "rope_divisors": divisors})
    return Decoder(shape, FolderTensors(folder, config, shape.layers))


def weights_in(folder: Path) -> int:
    """Number of weights that the folder's tensors stand for."""
    found = read_packed_folder(folder)
    count = sum(tensor.n * tensor.k for tensor in found.packed.values())
    for file in folder.glob("*.safetensors"):
        for entry in read_header(file).entries:
            per_element = 8 if entry.name.endswith(".qweight") else 1
            if entry.name in found.plain and entry.name.endswith((".weight", ".qweight")):
                count += math.prod(entry.shape) * per_element
    return count


class FolderTensors(Mapping[str, torch.Tensor]):
    """GGUF tensor names to fp32 weights; each is read and dequantized anew, so only one need be in memory."""

    def __init__(self, folder: Path, config: dict[str, Any], layers: int) -> None:
        self._folder = folder
        self._quantization = config.get("quantization_config") or {}
        self._files = {
            entry.name: file
            for file in sorted(folder.glob("*.safetensors"))
            for entry in read_header(file).entries
        }
        if not self._files:
            raise FormatError(f"{folder}: no weights: expected *.safetensors")
        modules = {name: module for name, module in _OUTER.items() if name != "output"}
        if not config.get("tie_word_embeddings", False):
            modules["output"] = _OUTER["output"]
        for layer in range(layers):
            modules |= {f"blk.{layer}.{k}": f"model.layers.{layer}.{v}" for k, v in _INNER.items()}
        self._modules = {f"{name}.weight": m for name, m in modules.items() if self._kind(m) is not None}
        missing = [m for m in modules.values() if self._kind(m) is None and not m.endswith("_norm")]
        if missing:
            raise FormatError(f"{folder}: no weight for {missing[0]} ({len(missing)} such modules)")

    def __getitem__(self, name: str) -> torch.Tensor:
        module = self._modules[name]
        kind = self._kind(module)
        if kind == "weight":
            return self._read(f"{module}.weight").float()
        if kind == "qweight":
            return self._gptq(module)
        return dequantized(self._read(module + PACKED_SUFFIX))

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def _kind(self, module: str) -> str | None:
        kinds = ("weight", PACKED_SUFFIX.removeprefix("."), "qweight")
        return next((kind for kind in kinds if f"{module}.{kind}" in self._files), None)

    def _read(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            return file.get_tensor(name)

    def _gptq(self, module: str) -> torch.Tensor:
        parts = {part: self._read(f"{module}.{part}") for part in ("qweight", "qzeros", "scales")}
        has_index = f"{module}.g_idx" in self._files
        return dense(
            gptq.unpack(
                **parts,
                g_idx=self._read(f"{module}.g_idx") if has_index else None,
                group_size=int(self._quantization["group_size"]),
                bits=int(self._quantization["bits"]),
                checkpoint_format=str(self._quantization.get("checkpoint_format", "gptq")),
                sym=bool(self._quantization.get("sym", True)),
            )
        )


def dequantized(packed: torch.Tensor) -> torch.Tensor:
    """The dense fp32 weight ``[N, K]`` of packed bytes."""
    rows = []
    for segment in layout.parse(packed):
        permuted = segment.permuted
        rows.append(
            dense(
                AffineCodes(
                    codes=layout.codes_of(packed, segment, slice(0, segment.panels)),
                    scales=layout.scales_of(packed, segment),
                    zeros=layout.zeros_of(packed, segment),
                    offsets=layout.offsets_of(packed, segment),
                    permutation=layout.permutation_of(packed, segment) if permuted else None,
                    bits=segment.bits,
                    group_size=segment.group_size,
                )
            )
        )
    return torch.cat(rows)


def dense(weight: AffineCodes) -> torch.Tensor:
    """fp32 ``[N, K]`` in the original order of columns, by the definition of the codes."""
    k = weight.codes.shape[1]
    size = k if weight.group_size == -1 else weight.group_size
    group = torch.arange(k) // size
    values = weight.codes.float()
    if weight.zeros is not None:
        values -= weight.zeros.float()[:, group]
    elif weight.offsets is None:
        values -= middle(weight.bits)
    values *= weight.scales.float()[:, group]
    if weight.offsets is not None:
        values += weight.offsets.float()[:, group]
    if weight.permutation is None:
        return values
    ordered = torch.empty_like(values)
    ordered[:, weight.permutation.long()] = values
    return ordered


def _rope_divisors(folder: Path, rule: dict[str, Any], shape: Shape) -> torch.Tensor | None:
    kind = rule.get("rope_type", "default")
    if kind == "default":
        return None
    if kind != "llama3":
        raise FormatError(f"{folder}/config.json: rope_scaling: expected default or llama3, found {kind!r}")
    low, high = float(rule["low_freq_factor"]), float(rule["high_freq_factor"])
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    wavelength = 2 * math.pi * shape.rope_theta**exponent
    turns = float(rule["original_max_position_embeddings"]) / wavelength
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - smooth) / float(rule["factor"]) + smooth)).float()
