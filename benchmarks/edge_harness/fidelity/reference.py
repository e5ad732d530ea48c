"""Plain PyTorch forward of the llama and qwen3 architectures over dequantized weights.

It shares no code with the product or with transformers: everything is written here from the architecture, and
from a GGUF file the `gguf` library reads and dequantizes the tensors. Three numerics of the same forward:

* `float32`: the reference.
* `bfloat16`: weights and activations in bf16, the standard PyTorch operators; the floor of any bf16 engine.
* `float32` with `int8_columns`: the inputs of every linear layer rounded to symmetric int8, one scale per
  row and per run of that many columns; what the documented `int8` activations cost by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from torch import Tensor
from torch.nn import functional

from vllm_omni.errors import FormatError

ARCHITECTURES = ("llama", "qwen3")


@dataclass(frozen=True)
class Shape:
    """Dimensions of the architecture. `rope_divisors` `[head_dim / 2]` stretch the rotary wavelengths."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_epsilon: float
    rope_divisors: Tensor | None = None


@dataclass
class KvCache:
    """Keys and values `[B, kv heads, T, head_dim]` by layer, of the tokens so far."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.keys:
            key = torch.cat((self.keys[layer], key), dim=2)
            value = torch.cat((self.values[layer], value), dim=2)
        self.keys[layer], self.values[layer] = key, value
        return key, value


@dataclass(frozen=True)
class Decoder:
    """A decoder as named tensors; weights `[N, K]`, all of one dtype.

    Names are GGUF's (`blk.0.attn_q.weight`), but the rows of `attn_q` and `attn_k` are in the order the
    half-split rotary embedding expects (GGUF stores those of llama interleaved). `tensors` may be a mapping
    that makes a tensor when it is asked for.
    """

    shape: Shape
    tensors: Mapping[str, Tensor]
    int8_columns: int | None = None

    @classmethod
    def from_gguf(cls, path: Path) -> Decoder:
        """Dequantize every tensor of `path` to fp32. Raises `FormatError` for another architecture."""
        reader = gguf.GGUFReader(path)

        def value(key: str, default: int | None = None) -> int | float | str:
            found = reader.get_field(key)
            if found is None:
                if default is not None:
                    return default
                raise FormatError(f"{path.name}: no metadata key {key!r}")
            return found.contents()

        name = str(value("general.architecture"))
        if name not in ARCHITECTURES:
            raise FormatError(f"{path.name}: expected architecture {' or '.join(ARCHITECTURES)}, got {name}")
        heads = int(value(f"{name}.attention.head_count"))
        hidden = int(value(f"{name}.embedding_length"))
        shape = Shape(
            layers=int(value(f"{name}.block_count")),
            heads=heads,
            kv_heads=int(value(f"{name}.attention.head_count_kv")),
            head_dim=int(value(f"{name}.attention.key_length", hidden // heads)),
            rope_theta=float(value(f"{name}.rope.freq_base")),
            norm_epsilon=float(value(f"{name}.attention.layer_norm_rms_epsilon")),
        )
        tensors = {}
        for tensor in reader.tensors:
            weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
            if name == "llama" and tensor.name.endswith("attn_q.weight"):
                weight = _half_split_rows(weight, shape.heads)
            elif name == "llama" and tensor.name.endswith("attn_k.weight"):
                weight = _half_split_rows(weight, shape.kv_heads)
            tensors[tensor.name] = weight
        return cls(replace(shape, rope_divisors=tensors.pop("rope_freqs.weight", None)), tensors)

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""
        return self.tensors[self._head_name + ".weight"].shape[0]

    def to(self, dtype: torch.dtype) -> Decoder:
        """The same weights rounded to `dtype`, in memory; activations follow."""
        return replace(self, tensors={name: tensor.to(dtype) for name, tensor in self.tensors.items()})

    def with_int8_activations(self, columns: int) -> Decoder:
        """The same weights, every linear layer's input fake-quantized per row and per `columns` columns."""
        return replace(self, int8_columns=columns)

    def with_tensor(self, name: str, change: Callable[[Tensor], Tensor]) -> Decoder:
        """A copy in which one tensor is replaced by `change(tensor)`; the others are shared."""
        return replace(self, tensors={**self.tensors, name: change(self.tensors[name])})

    @torch.inference_mode()
    def logits(self, tokens: Tensor) -> Tensor:
        """Causal logits, fp32 `[B, T, vocabulary]`, of int64 `tokens [B, T]` at positions from 0."""
        return self._linear(self._head_name, self._hidden(tokens, KvCache())).float()

    @torch.inference_mode()
    def logits_by_window(self, tokens: Tensor) -> Iterator[Tensor]:
        """As `logits`, window by window, with every weight asked for once: `[T, vocabulary]` each."""
        hidden = self._hidden(tokens, KvCache())
        head = self.tensors[self._head_name + ".weight"]
        for window in hidden:
            yield self._multiply(window, head).float()

    @torch.inference_mode()
    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The `count` tokens after `prompt`, each the likeliest; the first of equals, as argmax has it."""
        cache, step, found = KvCache(), prompt, list[int]()
        for _ in range(count):
            hidden = self._hidden(torch.tensor([step]), cache)[:, -1]
            found.append(int(self._linear(self._head_name, hidden).argmax(-1)))
            step = found[-1:]
        return found

    @property
    def _head_name(self) -> str:
        # A checkpoint without an output tensor ties the head to the embedding table.
        return "output" if "output.weight" in self.tensors else "token_embd"

    def _hidden(self, tokens: Tensor, cache: KvCache) -> Tensor:
        shape, start = self.shape, cache.length
        hidden = functional.embedding(tokens, self.tensors["token_embd.weight"])
        cos, sin = _rotary_tables(start + tokens.shape[1], shape, hidden.dtype)
        cos, sin = cos[start:], sin[start:]
        for layer in range(shape.layers):
            block = f"blk.{layer}."
            normed = self._norm(block + "attn_norm", hidden)
            hidden = hidden + self._attention(layer, normed, cos, sin, cache)
            hidden = hidden + self._feed_forward(block, self._norm(block + "ffn_norm", hidden))
        return self._norm("output_norm", hidden)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return self._multiply(x, self.tensors[name + ".weight"])

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.int8_columns is not None:
            x = int8_round_trip(x, self.int8_columns)
        return functional.linear(x, weight)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.shape.norm_epsilon)
        return self.tensors[name + ".weight"] * wide.to(x.dtype)

    def _attention(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor, cache: KvCache) -> Tensor:
        block = f"blk.{layer}."
        batch, length, _ = x.shape
        heads, kv_heads, head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        query = self._linear(block + "attn_q", x).view(batch, length, heads, head_dim).transpose(1, 2)
        key = self._linear(block + "attn_k", x).view(batch, length, kv_heads, head_dim).transpose(1, 2)
        value = self._linear(block + "attn_v", x).view(batch, length, kv_heads, head_dim).transpose(1, 2)
        if block + "attn_q_norm.weight" in self.tensors:
            query, key = self._norm(block + "attn_q_norm", query), self._norm(block + "attn_k_norm", key)
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        key, value = cache.extend(layer, key, value)
        key = key.repeat_interleave(heads // kv_heads, dim=1)
        value = value.repeat_interleave(heads // kv_heads, dim=1)
        scores = (query @ key.transpose(-1, -2)) * head_dim**-0.5
        past = key.shape[2] - length
        future = torch.ones(length, key.shape[2], dtype=torch.bool).triu(1 + past)
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


def _rotary_tables(length: int, shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin `[length, head_dim]`, computed in fp32 and rounded once to `dtype`."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequency = shape.rope_theta**-exponent
    if shape.rope_divisors is not None:
        frequency = frequency / shape.rope_divisors.float()
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def int8_round_trip(x: Tensor, columns: int) -> Tensor:
    """Round to symmetric int8 (largest magnitude is 127) and back, per row and per run of `columns`."""
    runs = x.unflatten(-1, (-1, columns))
    scale = runs.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scale > 0, runs / scale, 0.0).round()
    return (codes * scale).flatten(-2)
