"""``config.json`` of a synthetic checkpoint."""

from __future__ import annotations

from typing import Any

from vllm_omni.checkpoints.synthetic.geometries import Geometry

BOS_TOKEN_ID, EOS_TOKEN_ID, PAD_TOKEN_ID = 1, 2, 0

_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "spark2_5": "Spark2_5ForCausalLM"}
# Spark-X2.5: three layers that see 512 positions, then one that sees all of them.
_SPARK_WINDOW = 512
_SPARK_PATTERN = ("sliding_attention", "sliding_attention", "sliding_attention", "full_attention")
_SPARK_FULL_THETA = 5e6


def model_config(geometry: Geometry) -> dict[str, Any]:
    """Without ``quantization_config``. Token ids are the synthetic tokenizer's, not the published ones."""
    g = geometry
    config: dict[str, Any] = {
        "architectures": [_CLASSES[g.family]],
        "model_type": g.family,
        "hidden_act": "gelu" if g.family == "spark2_5" else "silu",
        "hidden_size": g.hidden,
        "intermediate_size": g.inner,
        "num_hidden_layers": g.layers,
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "max_position_embeddings": g.context,
        "rms_norm_eps": g.norm_epsilon,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": g.vocab,
        "tie_word_embeddings": g.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": PAD_TOKEN_ID,
    }
    return config | (_spark(g) if g.family == "spark2_5" else _rotary(g))


def generation_config() -> dict[str, Any]:
    return {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": EOS_TOKEN_ID, "pad_token_id": PAD_TOKEN_ID}


def _rotary(geometry: Geometry) -> dict[str, Any]:
    return {"rope_theta": geometry.rope_theta, "rope_scaling": geometry.rope_scaling}


def _spark(geometry: Geometry) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": geometry.rope_theta,
                "partial_rotary_factor": 1.0,
            },
            "full_attention": {
                "rope_type": "default",
                "rope_theta": _SPARK_FULL_THETA,
                "partial_rotary_factor": 0.25,
            },
        },
        "headwise_attn_output_gate": True,
        "gate_attn_act_mode": "sigmoid",
        "sliding_window": _SPARK_WINDOW,
        "layer_types": [_SPARK_PATTERN[layer % len(_SPARK_PATTERN)] for layer in range(geometry.layers)],
    }
