"""A synthetic checkpoint as a GGUF file: float16 matrices, float32 vectors, tokenizer included."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import MODEL_ARCH
from gguf.tensor_mapping import get_tensor_name_map

from vllm_omni.checkpoints.gguf_config import ROPE_FACTORS_TENSOR
from vllm_omni.checkpoints.synthetic import tokenizer
from vllm_omni.checkpoints.synthetic.geometries import Geometry, Tensor, tensors
from vllm_omni.checkpoints.synthetic.model_config import BOS_TOKEN_ID, EOS_TOKEN_ID, PAD_TOKEN_ID
from vllm_omni.checkpoints.synthetic.recipe import Recipe
from vllm_omni.checkpoints.synthetic.safetensors_folder import Written

_ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen3": MODEL_ARCH.QWEN3}
# llama.cpp's enumeration of whole files: mostly F16.
_FILE_TYPE_F16 = 1


@dataclass(frozen=True)
class GgufTensorPlan:
    """A tensor, its GGUF name and its type; ``interleaved_heads`` is 0 where rows keep their order."""

    tensor: Tensor
    name: str
    dtype: type[np.float16] | type[np.float32]
    interleaved_heads: int

    @property
    def nbytes(self) -> int:
        return self.tensor.elements * np.dtype(self.dtype).itemsize


def file_name(geometry: Geometry) -> str:
    return f"{geometry.name}-f16.gguf"


def plan(geometry: Geometry) -> list[GgufTensorPlan]:
    names = get_tensor_name_map(_ARCHITECTURES[geometry.family], geometry.layers)
    planned = []
    for tensor in tensors(geometry):
        name = names.get_name(tensor.module)
        assert name is not None, tensor.module
        dtype = np.float16 if len(tensor.shape) == 2 else np.float32
        planned.append(GgufTensorPlan(tensor, f"{name}.weight", dtype, _interleaved(geometry, tensor)))
    return planned


def write(recipe: Recipe, planned: list[GgufTensorPlan], folder: Path, written: Written) -> None:
    """Write the file, tensor by tensor."""
    geometry = recipe.geometry
    writer = gguf.GGUFWriter(folder / file_name(geometry), geometry.family)
    try:
        _add_metadata(writer, recipe)
        factors = rope_factors(geometry)
        if factors is not None:
            writer.add_tensor_info(ROPE_FACTORS_TENSOR, factors.shape, factors.dtype, factors.nbytes)
        for item in planned:
            writer.add_tensor_info(item.name, item.tensor.shape, np.dtype(item.dtype), item.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if factors is not None:
            writer.write_tensor_data(factors)
        for item in planned:
            original = recipe.original(item.tensor)
            dtype = torch.float16 if item.dtype is np.float16 else torch.float32
            values = recipe.unquantized(item.tensor, original, dtype)
            if item.interleaved_heads:
                values = interleave(values, item.interleaved_heads)
            writer.write_tensor_data(values.numpy())
            written(item.tensor, original)
    finally:
        writer.close()


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k in GGUF's order: within each head the two halves alternate."""
    n, k = rows.shape
    return rows.view(heads, 2, n // heads // 2, k).transpose(1, 2).reshape(n, k)


def rope_factors(geometry: Geometry) -> npt.NDArray[np.float32] | None:
    """The divisor of each rotary frequency by the llama3 rule; None where frequencies are not scaled."""
    rule = geometry.rope_scaling
    if rule is None:
        return None
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    exponents = np.arange(0, geometry.head_dim, 2) / geometry.head_dim
    wavelengths = 2 * math.pi * geometry.rope_theta**exponents
    turns = rule["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / rule["factor"] + smooth)).astype(np.float32)


def _interleaved(geometry: Geometry, tensor: Tensor) -> int:
    if geometry.family != "llama":
        return 0
    suffixes = {".q_proj": geometry.heads, ".k_proj": geometry.kv_heads}
    return next((heads for suffix, heads in suffixes.items() if tensor.module.endswith(suffix)), 0)


def _add_metadata(writer: gguf.GGUFWriter, recipe: Recipe) -> None:
    g = recipe.geometry
    writer.add_name(f"{g.name}, random weights of seed {recipe.seed}")
    writer.add_file_type(_FILE_TYPE_F16)
    writer.add_block_count(g.layers)
    writer.add_context_length(g.context)
    writer.add_embedding_length(g.hidden)
    writer.add_feed_forward_length(g.inner)
    writer.add_head_count(g.heads)
    writer.add_head_count_kv(g.kv_heads)
    writer.add_key_length(g.head_dim)
    writer.add_value_length(g.head_dim)
    writer.add_rope_dimension_count(g.head_dim)
    writer.add_rope_freq_base(g.rope_theta)
    writer.add_layer_norm_rms_eps(g.norm_epsilon)
    writer.add_vocab_size(g.vocab)
    words = tokenizer.vocabulary(g.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.GGUF_PRE_TOKENIZER)
    writer.add_token_list(list(words.tokens))
    writer.add_token_types(list(_token_types(len(words.tokens))))
    writer.add_token_merges([" ".join(pair) for pair in words.merges])
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_pad_token_id(PAD_TOKEN_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.CHAT_TEMPLATE)


def _token_types(count: int) -> Iterator[int]:
    for token_id in range(count):
        is_special = token_id < len(tokenizer.SPECIAL_TOKENS)
        yield int(gguf.TokenType.CONTROL if is_special else gguf.TokenType.NORMAL)
