"""Which layers are packed, decided from a folder's names and shapes, without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import WeightsMapper

from vllm_omni import int4
from vllm_omni.errors import FormatError
from vllm_omni.plugin import register_general
from vllm_omni.quantization.cpu_int4 import CpuInt4Config
from vllm_omni.quantization.dense_method import DenseEmbeddingMethod
from vllm_omni.quantization.embedding_method import Int4EmbeddingMethod
from vllm_omni.quantization.options import Int4Options
from vllm_omni.quantization.packed_folder import PackedFolder, PackedTensor

# Not a multiple of 64: vLLM pads it to 128.
VOCABULARY, HIDDEN = 100, 32


@pytest.fixture(autouse=True)
def engine() -> Iterator[VllmConfig]:
    register_general()
    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


def config_of(*packed: str, plain: tuple[str, ...] = (), tied: bool = False) -> CpuInt4Config:
    """A folder of packed tensors of the table's shape, and of unquantized weights."""
    config = CpuInt4Config(Int4Options(1, "digest"))
    tensors = {name: PackedTensor(name, "a", VOCABULARY, HIDDEN, (4,), 1) for name in packed}
    config.folder = PackedFolder(Path("model"), {}, tensors, frozenset(f"{name}.weight" for name in plain))
    config.tied = tied
    return config


def table(config: CpuInt4Config, prefix: str) -> VocabParallelEmbedding:
    return VocabParallelEmbedding(VOCABULARY, HIDDEN, quant_config=config, prefix=prefix, disable_tp=True)


def head(config: CpuInt4Config, prefix: str = "lm_head") -> ParallelLMHead:
    return ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config, prefix=prefix, disable_tp=True)


def packed_module(layer: VocabParallelEmbedding) -> str | None:
    method = layer.quant_method
    if isinstance(method, DenseEmbeddingMethod):
        return None
    assert isinstance(method, Int4EmbeddingMethod)
    return method.module


def test_a_table_is_found_by_its_name_or_by_its_shape() -> None:
    config = config_of("model.embed_tokens", "lm_head")
    assert packed_module(table(config, "model.embed_tokens")) == "model.embed_tokens"
    assert packed_module(table(config, "")) == "model.embed_tokens"
    assert packed_module(head(config)) == "lm_head"
    assert packed_module(head(config_of("model.embed_tokens", tied=True))) == "model.embed_tokens"


def test_a_plain_table_is_not_taken_for_a_packed_one_of_its_shape() -> None:
    config = config_of("model.layers.0.mlp.down_proj", plain=("model.embed_tokens",))
    assert packed_module(table(config, "model.embed_tokens")) is None
    config.apply_vllm_mapper(WeightsMapper(orig_to_new_prefix={"model.": "language_model.model."}))
    assert packed_module(table(config, "language_model.model.embed_tokens")) is None


def test_a_plain_head_beside_a_packed_table() -> None:
    config = config_of("model.embed_tokens", plain=("lm_head",))
    assert packed_module(head(config)) is None
    config.apply_vllm_mapper(WeightsMapper(orig_to_new_prefix={"lm_head": "language_model.lm_head"}))
    assert packed_module(head(config, "language_model.lm_head")) is None
    # A file of a tied model may repeat the head: the table's bytes serve.
    tied = config_of("model.embed_tokens", plain=("lm_head",), tied=True)
    assert packed_module(head(tied)) == "model.embed_tokens"


def test_two_tables_of_one_shape_are_refused() -> None:
    config = config_of("a.embed_tokens", "b.embed_tokens")
    with pytest.raises(
        FormatError, match=r"the embedding table: .* 100 rows of 32, found a\.embed_tokens, b\.e"
    ):
        table(config, "")


@pytest.mark.parametrize("name", ["runai_streamer", "dummy"])
def test_load_formats_are_refused(engine: VllmConfig, name: str) -> None:
    engine.load_config.load_format = name
    with pytest.raises(FormatError, match=f"--load-format {name}: cpu_int4 loads safetensors only"):
        table(config_of("embed"), "embed")
    with pytest.raises(FormatError, match=f"--load-format {name}"):
        ReplicatedLinear(32, 32, quant_config=config_of("linear"), prefix="linear", disable_tp=True)


def test_draft_models_are_refused_and_ngrams_are_not(engine: VllmConfig) -> None:
    engine.speculative_config = SimpleNamespace(method="eagle3")
    with pytest.raises(FormatError, match="method 'eagle3' brings a draft model"):
        table(config_of("embed"), "embed")
    engine.speculative_config = SimpleNamespace(method="ngram")
    assert packed_module(table(config_of("embed"), "embed")) == "embed"


@pytest.mark.parametrize("vocabulary", [VOCABULARY, 128])
def test_logits_of_a_padded_vocabulary(vocabulary: int) -> None:
    """vLLM slices its padding off, or masks as many columns from the end: no real token may be lost."""
    weight = int4.quantize(torch.randn(vocabulary, HIDDEN), group_size=32, bits=8)
    config = config_of()
    tensor = PackedTensor("lm_head", "a", vocabulary, HIDDEN, (8,), weight.nbytes)
    config.folder = PackedFolder(Path("model"), {}, {"lm_head": tensor})
    layer = ParallelLMHead(vocabulary, HIDDEN, quant_config=config, prefix="lm_head", disable_tp=True)
    layer.weight_packed.weight_loader(layer.weight_packed, weight.data)
    layer.quant_method.process_weights_after_loading(layer)
    processor = LogitsProcessor(vocabulary)
    # A row of the table is most like itself: the best tokens are among the last, where padding is masked.
    dense = weight.dequantize()
    hidden = dense[-8:]
    expected = hidden @ dense.T
    logits = processor(layer, hidden)
    assert logits is not None
    assert logits.shape == (8, vocabulary)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    best = expected.argmax(-1)
    assert (best >= vocabulary - 28).any(), "the last tokens are part of this test"
    assert torch.equal(processor.get_top_tokens(layer, hidden), best)
    ids, values = processor.get_top_k_tokens(layer, hidden, 3)
    assert torch.equal(ids, expected.topk(3).indices)
    torch.testing.assert_close(values, expected.topk(3).values, rtol=1e-4, atol=1e-4)
    with_bias = processor(layer, hidden, torch.ones(layer.num_embeddings_padded))
    torch.testing.assert_close(with_bias, expected + 1, rtol=1e-4, atol=1e-4)
