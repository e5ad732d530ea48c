"""Plain PyTorch forward of the llama architecture, straight from a GGUF file's dequantized weights.

It shares no code with the product or with transformers: the `gguf` library reads and dequantizes the
tensors, everything else is written here from the architecture. Three numerics of the same forward:

* `float32`: the reference of the proof.
* `bfloat16`: weights and activations in bf16, the standard PyTorch operators; the floor of any bf16 engine.
* `float32` with `int8_columns`: the inputs of every linear layer rounded to symmetric int8, one scale per
  row and per run of that many columns; what the documented `int8` activations cost by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from torch.nn import functional

Tensor = torch.Tensor


@dataclass(frozen=True)
class Shape:
    """Dimensions of the architecture, from the file's metadata."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    rope_theta: float
    norm_epsilon: float

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class Llama:
    """A llama-architecture model as named tensors; weights `[N, K]`, all of one dtype.

    Names are GGUF's (`blk.0.attn_q.weight`), but the rows of `attn_q` and `attn_k` are in the order the
    half-split rotary embedding expects (GGUF stores them interleaved).
    """

    shape: Shape
    tensors: dict[str, Tensor]
    int8_columns: int | None = None

    @classmethod
    def from_gguf(cls, path: Path) -> Llama:
        """Dequantize every tensor of `path` to fp32. Raises ValueError for another architecture."""
        reader = gguf.GGUFReader(path)

        def value(key: str) -> int | float | str:
            field = reader.get_field(key)
            if field is None:
                raise ValueError(f"{path.name}: no metadata key {key!r}")
            return field.contents()

        if value("general.architecture") != "llama":
            raise ValueError(f"{path.name}: expected architecture llama, got {value('general.architecture')}")
        shape = Shape(
            layers=int(value("llama.block_count")),
            hidden=int(value("llama.embedding_length")),
            heads=int(value("llama.attention.head_count")),
            kv_heads=int(value("llama.attention.head_count_kv")),
            rope_theta=float(value("llama.rope.freq_base")),
            norm_epsilon=float(value("llama.attention.layer_norm_rms_epsilon")),
        )
        tensors = {}
        for tensor in reader.tensors:
            weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
            if tensor.name.endswith("attn_q.weight"):
                weight = _half_split_rows(weight, shape.heads)
            elif tensor.name.endswith("attn_k.weight"):
                weight = _half_split_rows(weight, shape.kv_heads)
            tensors[tensor.name] = weight
        return cls(shape, tensors)

    def to(self, dtype: torch.dtype) -> Llama:
        """The same weights rounded to `dtype`; activations follow."""
        return replace(self, tensors={name: tensor.to(dtype) for name, tensor in self.tensors.items()})

    def with_int8_activations(self, columns: int) -> Llama:
        """The same weights, every linear layer's input fake-quantized per row and per `columns` columns."""
        return replace(self, int8_columns=columns)

    def with_tensor(self, name: str, change: Callable[[Tensor], Tensor]) -> Llama:
        """A copy in which one tensor is replaced by `change(tensor)`; the others are shared."""
        return replace(self, tensors={**self.tensors, name: change(self.tensors[name])})

    @torch.inference_mode()
    def logits(self, tokens: Tensor) -> Tensor:
        """Causal logits, fp32 `[B, T, vocabulary]`, of int64 `tokens [B, T]` at positions from 0."""
        shape = self.shape
        hidden = functional.embedding(tokens, self.tensors["token_embd.weight"])
        cos, sin = _rotary_tables(tokens.shape[1], shape.head_dim, shape.rope_theta, hidden.dtype)
        for layer in range(shape.layers):
            block = f"blk.{layer}."
            hidden = hidden + self._attention(block, self._norm(block + "attn_norm", hidden), cos, sin)
            hidden = hidden + self._feed_forward(block, self._norm(block + "ffn_norm", hidden))
        hidden = self._norm("output_norm", hidden)
        # A file without an output tensor ties the head to the embedding table.
        head = "output" if "output.weight" in self.tensors else "token_embd"
        return self._linear(head, hidden).float()

    def _linear(self, name: str, x: Tensor) -> Tensor:
        if self.int8_columns is not None:
            x = _int8_round_trip(x, self.int8_columns)
        return functional.linear(x, self.tensors[name + ".weight"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.shape.norm_epsilon)
        return self.tensors[name + ".weight"] * wide.to(x.dtype)

    def _attention(self, block: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads, kv_heads, head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        query = self._linear(block + "attn_q", x).view(batch, length, heads, head_dim).transpose(1, 2)
        key = self._linear(block + "attn_k", x).view(batch, length, kv_heads, head_dim).transpose(1, 2)
        value = self._linear(block + "attn_v", x).view(batch, length, kv_heads, head_dim).transpose(1, 2)
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        key = key.repeat_interleave(heads // kv_heads, dim=1)
        value = value.repeat_interleave(heads // kv_heads, dim=1)
        scores = (query @ key.transpose(-1, -2)) * head_dim**-0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, heads * head_dim)
        return self._linear(block + "attn_output", mixed)

    def _feed_forward(self, block: str, x: Tensor) -> Tensor:
        gate = functional.silu(self._linear(block + "ffn_gate", x))
        return self._linear(block + "ffn_down", gate * self._linear(block + "ffn_up", x))


def _half_split_rows(weight: Tensor, heads: int) -> Tensor:
    """Per head, GGUF row 2i is half-split row i and row 2i + 1 is row i + head_dim / 2."""
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return torch.cat((pairs[:, :, 0], pairs[:, :, 1]), dim=1).reshape(rows, columns)


def _rotary_tables(length: int, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin `[length, head_dim]`, computed in fp32 and rounded once to `dtype`."""
    frequency = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _int8_round_trip(x: Tensor, columns: int) -> Tensor:
    """Round to symmetric int8 (largest magnitude is 127) and back, per row and per run of `columns`."""
    runs = x.unflatten(-1, (-1, columns))
    scale = runs.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scale > 0, runs / scale, 0.0).round()
    return (codes * scale).flatten(-2)
