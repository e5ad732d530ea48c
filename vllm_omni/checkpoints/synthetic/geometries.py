"""Published dimensions of models, and the tensors that each of them has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from vllm_omni.errors import OmniError

Family = Literal["llama", "qwen3", "spark2_5"]
Role = Literal["table", "head", "linear", "residual", "gate", "norm"]
"""``residual``: a linear layer whose output is added to the residual stream. ``gate``: a linear layer of a
few rows, which no format quantizes."""


@dataclass(frozen=True)
class Geometry:
    """A model's dimensions. ``rope_scaling`` and ``extra`` go into ``config.json`` as they are."""

    name: str
    published_as: str
    family: Family
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    norm_epsilon: float
    tied: bool = True
    rope_scaling: dict[str, Any] | None = None

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in tensors(self))


@dataclass(frozen=True)
class Tensor:
    """A tensor of the checkpoint. ``parts`` are the rows of the layers that a fused one stacks."""

    name: str
    shape: tuple[int, ...]
    role: Role
    parts: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return self.shape[0] * (self.shape[1] if len(self.shape) == 2 else 1)

    @property
    def module(self) -> str:
        return self.name.removesuffix(".weight")


_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}

_ROWS = (
    # family: hidden, inner, layers, heads, kv heads, head size, vocabulary, context, theta, epsilon
    Geometry("qwen3-0.6b", "Qwen3-0.6B", "qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6),
    Geometry("qwen3-1.7b", "Qwen3-1.7B", "qwen3", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6),
    Geometry("qwen3-4b", "Qwen3-4B", "qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6, 1e-6),
    Geometry(
        "llama-1b", "Llama-3.2-1B", "llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5, 1e-5,
        rope_scaling=_LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192},
    ),
    Geometry(
        "llama-3b", "Llama-3.2-3B", "llama", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5, 1e-5,
        rope_scaling=_LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192},
    ),
    Geometry("smollm2-135m", "SmolLM2-135M", "llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5, 1e-5),
    Geometry("smollm2-360m", "SmolLM2-360M", "llama", 960, 2560, 32, 15, 5, 64, 49152, 8192, 1e5, 1e-5),
    Geometry("smollm2-1.7b", "SmolLM2-1.7B", "llama", 2048, 8192, 24, 32, 32, 64, 49152, 8192, 1.3e5, 1e-5),
    Geometry(
        "spark-1.7b", "Spark-X2.5-1.7B", "spark2_5", 2048, 6656, 28, 8, 2, 256, 131072, 1 << 20, 1e4, 1e-6
    ),
    Geometry(
        "spark-4b", "Spark-X2.5-4B", "spark2_5", 2560, 10240, 36, 16, 4, 256, 131072, 1 << 20, 1e4, 1e-6
    ),
    # Of no published model: for tests, in seconds.
    Geometry("tiny-llama", "none", "llama", 256, 512, 2, 4, 2, 64, 2048, 2048, 1e4, 1e-5),
    Geometry("tiny-llama-untied", "none", "llama", 256, 512, 2, 4, 2, 64, 2048, 2048, 1e4, 1e-5, tied=False),
    Geometry("tiny-qwen3", "none", "qwen3", 256, 512, 2, 4, 2, 64, 2112, 2048, 1e6, 1e-6),
    Geometry("tiny-spark", "none", "spark2_5", 256, 512, 4, 4, 1, 64, 2048, 4096, 1e4, 1e-6),
)  # fmt: skip

GEOMETRIES = {row.name: row for row in _ROWS}


def geometry(name: str) -> Geometry:
    """The row of ``name``; ``OmniError`` lists the names."""
    if name not in GEOMETRIES:
        raise OmniError(f"GEOMETRY: expected one of {', '.join(GEOMETRIES)}; found {name!r}")
    return GEOMETRIES[name]


def tensors(geometry: Geometry) -> Iterator[Tensor]:
    """Every tensor of the checkpoint under its published name, in file order.

    What vLLM joins into one layer (q, k, v; gate, up) is adjacent, so that one view maps the whole layer.
    """
    g = geometry
    spark = g.family == "spark2_5"
    q, kv = g.heads * g.head_dim, g.kv_heads * g.head_dim
    table = "model.embedding.weight" if spark else "model.embed_tokens.weight"
    yield Tensor(table, (g.vocab, g.hidden), "table")
    for layer in range(g.layers):
        prefix = f"model.layers.{layer}."
        if spark:
            yield Tensor(
                prefix + "self_attn.q_k_v_proj.weight", (q + 2 * kv, g.hidden), "linear", (q, kv, kv)
            )
            yield Tensor(prefix + "self_attn.out_proj.weight", (g.hidden, q), "residual")
            yield Tensor(prefix + "self_attn.g_proj.weight", (g.heads, g.hidden), "gate")
        else:
            yield Tensor(prefix + "self_attn.q_proj.weight", (q, g.hidden), "linear")
            yield Tensor(prefix + "self_attn.k_proj.weight", (kv, g.hidden), "linear")
            yield Tensor(prefix + "self_attn.v_proj.weight", (kv, g.hidden), "linear")
            yield Tensor(prefix + "self_attn.o_proj.weight", (g.hidden, q), "residual")
        if g.family == "qwen3":
            yield Tensor(prefix + "self_attn.q_norm.weight", (g.head_dim,), "norm")
            yield Tensor(prefix + "self_attn.k_norm.weight", (g.head_dim,), "norm")
        yield Tensor(prefix + "mlp.gate_proj.weight", (g.inner, g.hidden), "linear")
        yield Tensor(prefix + "mlp.up_proj.weight", (g.inner, g.hidden), "linear")
        yield Tensor(prefix + "mlp.down_proj.weight", (g.hidden, g.inner), "residual")
        yield Tensor(prefix + "input_layernorm.weight", (g.hidden,), "norm")
        yield Tensor(prefix + "post_attention_layernorm.weight", (g.hidden,), "norm")
    yield Tensor("model.norm.weight", (g.hidden,), "norm")
    if not g.tied:
        yield Tensor("lm_head.weight", (g.vocab, g.hidden), "head")
