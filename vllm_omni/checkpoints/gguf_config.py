"""Hugging Face ``config.json`` from a GGUF's metadata, one table row per architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import MODEL_ARCH

from vllm_omni.checkpoints.gguf_source import GgufSource
from vllm_omni.errors import FormatError

ROPE_FACTORS_TENSOR = "rope_freqs.weight"


@dataclass(frozen=True)
class Architecture:
    """How a GGUF architecture is spelled by transformers and vLLM."""

    arch: MODEL_ARCH
    model_type: str
    model_class: str
    # llama.cpp rotates neighbouring rows of q and k together, transformers rows half a head apart: the
    # converter has interleaved the rows, and the import moves them back.
    interleaved_rope: bool
    # Constants that the GGUF does not carry because the architecture fixes them.
    fixed: dict[str, Any]


ARCHITECTURES = {
    "llama": Architecture(
        MODEL_ARCH.LLAMA, "llama", "LlamaForCausalLM", interleaved_rope=True, fixed={"hidden_act": "silu"}
    ),
}

# Metadata under "<architecture>." that the import understands, each with whether it may be anything but a
# neutral value. A key outside this table could change what the model computes, so it is refused rather than
# dropped.
_KNOWN_KEYS = frozenset(
    {
        "attention.causal",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "tensor_data_layout",
        "vocab_size",
    }
)
_NEUTRAL = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.attn_factor": 1.0,
    "tensor_data_layout": "Meta AI original pth",
}


def architecture_of(source: GgufSource) -> Architecture:
    """The table row of a file's architecture; ``FormatError`` names an unsupported one."""
    try:
        return ARCHITECTURES[source.architecture]
    except KeyError:
        raise FormatError(
            f"{source.path}: architecture {source.architecture!r} is not supported; "
            f"supported: {', '.join(sorted(ARCHITECTURES))}"
        ) from None


def model_config(source: GgufSource, architecture: Architecture) -> dict[str, Any]:
    """``config.json`` of the model, without ``quantization_config``.

    ``vocab_size`` is the number of rows of the embedding table; ``tie_word_embeddings`` says that the file
    has no output tensor. Raises ``FormatError`` naming the key that is missing, contradictory or without a
    counterpart.
    """
    prefix = source.architecture
    _refuse_unknown_keys(source, prefix)
    hidden = source.integer(f"{prefix}.embedding_length")
    heads = source.integer(f"{prefix}.attention.head_count")
    kv_heads = source.integer(f"{prefix}.attention.head_count_kv", heads)
    if heads % kv_heads:
        raise FormatError(
            f"{source.path}: {heads} attention heads, {kv_heads} key/value heads: expected a whole multiple"
        )
    head_dim = _head_dim(source, prefix, hidden, heads)
    context = source.integer(f"{prefix}.context_length")
    config: dict[str, Any] = {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        **architecture.fixed,
        "hidden_size": hidden,
        "intermediate_size": source.integer(f"{prefix}.feed_forward_length"),
        "num_hidden_layers": source.integer(f"{prefix}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": source.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "rope_theta": source.number(f"{prefix}.rope.freq_base", 10000.0),
        "rope_scaling": None,
        "attention_bias": "blk.0.attn_q.bias" in source.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in source.tensors,
        "vocab_size": _vocab_size(source, prefix),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    config["rope_scaling"] = _rope_scaling(source, prefix, config)
    config |= token_ids(source)
    return config


def token_ids(source: GgufSource) -> dict[str, Any]:
    """``bos_token_id``, ``eos_token_id``, ``pad_token_id``; None where the file names none.

    ``eos_token_id`` is a list when the file also names an end-of-turn token. Raises ``FormatError`` for an id
    outside the vocabulary.
    """
    ids: dict[str, Any] = {}
    for name, keys in (
        ("bos_token_id", ("bos",)),
        ("eos_token_id", ("eos", "eot")),
        ("pad_token_id", ("padding",)),
    ):
        found = [source.token_id(key) for key in keys]
        unique = list(dict.fromkeys(i for i in found if i is not None))
        ids[name] = unique[0] if len(unique) == 1 else unique or None
    return ids


def generation_config(source: GgufSource) -> dict[str, Any]:
    """``generation_config.json``: the token ids, and the sampling values where the file recommends any."""
    config = {name: value for name, value in token_ids(source).items() if value is not None}
    for key, name in (("top_k", "top_k"), ("top_p", "top_p"), ("min_p", "min_p"), ("temp", "temperature")):
        value = source.get(f"general.sampling.{key}", None)
        if value is not None:
            config[name] = value if type(value) is int else source.number(f"general.sampling.{key}")
    if "temperature" in config:
        config["do_sample"] = config["temperature"] > 0
    return config


def _refuse_unknown_keys(source: GgufSource, prefix: str) -> None:
    for key in source.metadata_keys:
        if not key.startswith(prefix + "."):
            continue
        name = key.removeprefix(prefix + ".")
        if name not in _KNOWN_KEYS:
            raise FormatError(
                f"{source.path}: metadata key {key!r} = {_short(source.get(key))} is not supported"
            )
        if name in _NEUTRAL and source.get(key) != _NEUTRAL[name]:
            raise FormatError(
                f"{source.path}: metadata key {key!r} is {_short(source.get(key))}: "
                f"only {_NEUTRAL[name]!r} is supported"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _head_dim(source: GgufSource, prefix: str, hidden: int, heads: int) -> int:
    if f"{prefix}.attention.key_length" in source.metadata_keys:
        head_dim = source.integer(f"{prefix}.attention.key_length")
    elif hidden % heads:
        raise FormatError(f"{source.path}: hidden size {hidden} is not a multiple of {heads} attention heads")
    else:
        head_dim = hidden // heads
    for name in ("attention.value_length", "rope.dimension_count"):
        value = source.integer(f"{prefix}.{name}", head_dim)
        if value != head_dim:
            raise FormatError(f"{source.path}: {prefix}.{name} is {value}: expected the head size {head_dim}")
    if head_dim % 2:
        raise FormatError(f"{source.path}: head size {head_dim} is odd: rotary embedding needs pairs")
    return head_dim


def _vocab_size(source: GgufSource, prefix: str) -> int:
    table = source.tensors.get("token_embd.weight")
    if table is None:
        raise FormatError(f"{source.path}: tensor 'token_embd.weight' is missing")
    rows = table.shape[0]
    stated = source.integer(f"{prefix}.vocab_size", rows)
    if stated != rows:
        raise FormatError(
            f"{source.path}: {prefix}.vocab_size is {stated}, the table 'token_embd.weight' has {rows} rows"
        )
    return rows


def _rope_scaling(source: GgufSource, prefix: str, config: dict[str, Any]) -> dict[str, Any] | None:
    kind = source.get(f"{prefix}.rope.scaling.type", "none")
    factor = source.number(f"{prefix}.rope.scaling.factor", source.number(f"{prefix}.rope.scale_linear", 1.0))
    if ROPE_FACTORS_TENSOR in source.tensors:
        if kind != "none":
            raise FormatError(
                f"{source.path}: both {ROPE_FACTORS_TENSOR!r} and rope scaling {kind!r}: expected one"
            )
        return _llama3_scaling(source, config)
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return {"rope_type": "linear", "factor": factor}
    if kind == "none":
        return None
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": source.integer(
                f"{prefix}.rope.scaling.original_context_length"
            ),
        }
    raise FormatError(
        f"{source.path}: rope scaling {kind!r} is not supported; supported: none, linear, yarn, llama3"
    )


def _llama3_scaling(source: GgufSource, config: dict[str, Any]) -> dict[str, Any]:
    """The llama3 rule whose factors the file stores, found by trying; one that matches no rule is refused.

    The file stores the divisor of each frequency, not the four numbers it came from. The largest divisor is
    ``factor``; the published models use the frequency bounds 1 and 4 and differ in the original context.
    """
    stored = source.tensors[ROPE_FACTORS_TENSOR].floats().astype(np.float64)
    dim = config["head_dim"]
    if stored.shape != (dim // 2,):
        raise FormatError(
            f"{source.path}: tensor {ROPE_FACTORS_TENSOR!r} has shape {list(stored.shape)}: "
            f"expected [{dim // 2}]"
        )
    low, high = 1.0, 4.0
    factor = float(stored.max())
    wavelength = 2 * math.pi * config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    for original in (2048, 4096, 8192, 16384, 32768, 65536, 131072):
        smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
        if np.allclose(1 / ((1 - smooth) / factor + smooth), stored, rtol=1e-4, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise FormatError(f"{source.path}: the factors in {ROPE_FACTORS_TENSOR!r} match no llama3 rope scaling")
