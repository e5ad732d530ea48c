from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vllm_omni.checkpoints.gguf_config import architecture_of, generation_config, model_config
from vllm_omni.checkpoints.gguf_source import GgufSource
from vllm_omni.errors import FormatError


def config_of(path: Path) -> dict[str, Any]:
    source = GgufSource(path)
    return model_config(source, architecture_of(source))


def assert_as_transformers_reads_it(path: Path) -> None:
    """transformers has its own table from GGUF metadata to a config."""
    ours, theirs = config_of(path), load_gguf_checkpoint(str(path))["config"]
    compared = set(ours) & set(theirs)
    assert len(compared) > 10
    for key in compared - {"rms_norm_eps"}:
        assert ours[key] == theirs[key], key
    # The same float32: theirs as a double, ours as its shortest decimal.
    assert ours["rms_norm_eps"] == 1e-5
    assert np.float32(ours["rms_norm_eps"]) == np.float32(theirs["rms_norm_eps"])


@pytest.mark.parametrize("tied", [True, False])
def test_a_tiny_model_against_transformers(write_tiny: Callable[..., Path], tied: bool) -> None:
    path = write_tiny(tied=tied, metadata={"llama.rope.dimension_count": 16})
    assert_as_transformers_reads_it(path)
    assert config_of(path)["tie_word_embeddings"] is tied


@pytest.mark.model
def test_the_real_model_against_transformers(smollm2_gguf: Path) -> None:
    assert_as_transformers_reads_it(smollm2_gguf)


def test_transformers_and_auto_config_accept_it(write_tiny: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(write_tiny(metadata={"llama.rope.freq_base": 500000.0}))
    LlamaConfig(**config).save_pretrained(tmp_path / "model")
    read = AutoConfig.from_pretrained(tmp_path / "model")
    assert read.model_type == "llama"
    assert read.architectures == ["LlamaForCausalLM"]
    assert read.rope_parameters == {"rope_type": "default", "rope_theta": 500000.0}
    assert read.num_key_value_heads == 2
    assert read.head_dim == 16
    assert read.dtype == torch.bfloat16


def test_a_head_size_of_its_own(write_tiny: Callable[..., Path]) -> None:
    metadata = {
        "llama.attention.key_length": 32,
        "llama.attention.value_length": 32,
        "llama.rope.dimension_count": 32,
    }
    assert config_of(write_tiny(metadata=metadata))["head_dim"] == 32


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 16.0,
                "llama.rope.scaling.original_context_length": 4096,
            },
            {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096},
        ),
    ],
)
def test_rope_scaling(write_tiny: Callable[..., Path], metadata: dict[str, Any], expected: Any) -> None:
    assert config_of(write_tiny(metadata=metadata))["rope_scaling"] == expected


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 4096)])
def test_llama3_rope_scaling_is_recognized(
    write_tiny: Callable[..., Path], factor: float, original: int
) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    # 64 frequencies of base 500000, some of them in the interpolated band.
    plain = LlamaConfig(hidden_size=128, num_attention_heads=1, rope_theta=500000.0, head_dim=128)
    scaled = LlamaConfig(
        hidden_size=128, num_attention_heads=1, rope_theta=500000.0, head_dim=128, rope_scaling=dict(scaling)
    )
    frequencies = 1 / (500000.0 ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128))
    assert plain.rope_parameters["rope_type"] == "default"
    stored = (
        (frequencies / ROPE_INIT_FUNCTIONS["llama3"](scaled, torch.device("cpu"))[0].double()).float().numpy()
    )
    assert np.count_nonzero((stored > 1.001) & (stored < factor - 0.001)) > 0
    path = write_tiny(
        hidden=128,
        heads=1,
        kv_heads=1,
        metadata={"llama.rope.freq_base": 500000.0},
        extra={"rope_freqs.weight": stored},
    )
    found = config_of(path)["rope_scaling"]
    assert found.pop("factor") == pytest.approx(factor, rel=1e-6)
    scaling.pop("factor")
    assert found == scaling


def test_rope_factors_of_no_known_rule(write_tiny: Callable[..., Path]) -> None:
    path = write_tiny(extra={"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)})
    with pytest.raises(FormatError, match="match no llama3 rope scaling"):
        config_of(path)


@pytest.mark.parametrize("architecture", ["qwen2moe", "mamba", "gptneox", "deepseek2"])
def test_an_unsupported_architecture_is_named(write_tiny: Callable[..., Path], architecture: str) -> None:
    source = GgufSource(write_tiny(architecture=architecture))
    with pytest.raises(
        FormatError, match=rf"architecture '{architecture}' is not supported; supported: .*llama"
    ):
        architecture_of(source)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metadata": {"llama.expert_count": 8}}, "'llama.expert_count' is 8: only 0"),
        ({"metadata": {"llama.attention.sliding_window": 4096}}, "sliding_window' = 4096 is not"),
        ({"metadata": {"llama.attention.causal": False}}, "'llama.attention.causal' is False: only True"),
        ({"metadata": {"llama.context_length": None}}, "'llama.context_length' is missing"),
        ({"metadata": {"llama.attention.head_count_kv": 3}}, "4 attention heads, 3 key/value heads"),
        ({"metadata": {"llama.attention.head_count_kv": [2, 1]}}, "differs from layer to layer"),
        ({"metadata": {"llama.attention.head_count": 5}}, "5 attention heads, 2 key/value"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "is 8: expected the head size 16"),
        ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "rope scaling 'longrope' is not supported"),
        ({"metadata": {"llama.rope.freq_base": float("nan")}}, "expected a finite number"),
        ({"metadata": {"llama.vocab_size": 99}}, "is 99, the table 'token_embd.weight' has 263 rows"),
        ({"drop": {"token_embd.weight"}}, "'token_embd.weight' is missing"),
    ],
)
def test_metadata_that_would_be_misread_is_refused(
    write_tiny: Callable[..., Path], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        config_of(write_tiny(**fields))


def test_token_ids_and_recommended_sampling(write_tiny: Callable[..., Path]) -> None:
    path = write_tiny(
        metadata={
            "tokenizer.ggml.eot_token_id": 0,
            "general.sampling.temp": 0.6,
            "general.sampling.top_k": 20,
            "general.sampling.top_p": 0.95,
        }
    )
    assert generation_config(GgufSource(path)) == {
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "pad_token_id": 2,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "do_sample": True,
    }


def test_without_recommendations_there_are_token_ids_alone(write_tiny: Callable[..., Path]) -> None:
    assert generation_config(GgufSource(write_tiny())) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


@pytest.mark.parametrize("role", ["bos", "eos", "eot", "padding"])
@pytest.mark.parametrize("value", ["<|im_end|>", 263, 4294967295, 2.0, True, [2]])
def test_a_token_id_outside_the_vocabulary_is_refused(
    write_tiny: Callable[..., Path], role: str, value: Any
) -> None:
    source = GgufSource(write_tiny(metadata={f"tokenizer.ggml.{role}_token_id": value}))
    for make in (lambda: model_config(source, architecture_of(source)), lambda: generation_config(source)):
        with pytest.raises(FormatError, match=rf"{role}_token_id' is .*: expected a token id below 263"):
            make()


def test_biases_are_seen(write_tiny: Callable[..., Path]) -> None:
    assert config_of(write_tiny(biases=True))["attention_bias"] is True
    assert config_of(write_tiny(mlp_biases=True))["mlp_bias"] is True
    assert config_of(write_tiny(types={"ffn_up.weight": T.Q8_0}))["attention_bias"] is False
