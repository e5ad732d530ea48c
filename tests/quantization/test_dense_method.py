"""Tables and heads that are not packed: one copy, where the checkpoint lies, serves rows and head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from tests.model.engine import engine
from tests.quantization.test_cpu_int4 import BOUNDS, errors, observed
from tests.quantization.tiny_checkpoint import TinyCheckpoint
from vllm_omni import _rust
from vllm_omni.errors import FormatError
from vllm_omni.plugin import register_general
from vllm_omni.quantization.cpu_int4 import CpuInt4Config
from vllm_omni.quantization.dense_method import DenseEmbeddingMethod
from vllm_omni.quantization.embedding_method import Int4EmbeddingMethod
from vllm_omni.quantization.kernel_names import DTYPE_NAMES
from vllm_omni.quantization.options import Int4Options
from vllm_omni.quantization.packed_folder import PackedFolder, PackedTensor

# Not a multiple of 64: vLLM pads it to 128.
VOCABULARY, HIDDEN = 100, 32


@pytest.fixture(autouse=True)
def vllm_config() -> Iterator[None]:
    register_general()
    with set_current_vllm_config(VllmConfig()):
        yield


def config_of(*packed: str, plain: tuple[str, ...] = ()) -> CpuInt4Config:
    config = CpuInt4Config(Int4Options(1, "digest"))
    tensors = {name: PackedTensor(name, "a", VOCABULARY, HIDDEN, (4,), 1) for name in packed}
    config.folder = PackedFolder(Path("model"), {}, tensors, frozenset(f"{name}.weight" for name in plain))
    return config


def plain_table(dtype: torch.dtype | None = None, **options: Any) -> VocabParallelEmbedding:
    config = config_of("linear", plain=("embed",))
    sizes = {"num_embeddings": VOCABULARY, "embedding_dim": HIDDEN} | options
    return VocabParallelEmbedding(
        **sizes, params_dtype=dtype, quant_config=config, prefix="embed", disable_tp=True
    )


def plain_head(vocabulary: int = VOCABULARY, dtype: torch.dtype | None = None) -> ParallelLMHead:
    config = config_of("linear", plain=("lm_head",))
    return ParallelLMHead(
        vocabulary, HIDDEN, params_dtype=dtype, quant_config=config, prefix="lm_head", disable_tp=True
    )


def load(layer: VocabParallelEmbedding, stored: torch.Tensor) -> None:
    layer.weight.weight_loader(layer.weight, stored)
    layer.quant_method.process_weights_after_loading(layer)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [torch.bfloat16, torch.float16, torch.float32])
def test_the_checkpoints_tensor_is_the_table_and_the_head(stored: torch.dtype, model: torch.dtype) -> None:
    tensor = torch.randn(VOCABULARY, HIDDEN).to(stored)
    table, head = plain_table(model), plain_head(dtype=model)
    head.tie_weights(table)
    load(table, tensor)
    head.quant_method.process_weights_after_loading(head)
    assert table.weight is head.weight
    in_place = stored == model or model == torch.float32
    assert (table.weight.data_ptr() == tensor.data_ptr()) == in_place
    tensor = tensor if in_place else tensor.to(model)
    assert table.weight.dtype == tensor.dtype
    assert not hasattr(table, "cpu_linear")
    assert not hasattr(head, "cpu_linear")
    ids = torch.tensor([[0, 99], [7, 7]])
    assert torch.equal(table(ids), tensor[ids].to(model))
    x = torch.randn(3, HIDDEN).to(model)
    logits = head.quant_method.apply(head, x)
    assert logits.dtype == model
    exact = (x.double() @ tensor.double().T).float()
    torch.testing.assert_close(logits[:, :VOCABULARY].float(), exact, rtol=torch.finfo(model).eps, atol=1e-5)
    assert bool((logits[:, VOCABULARY:] == float("-inf")).all())


@pytest.mark.parametrize("vocabulary", [VOCABULARY, 128])
def test_logits_of_a_padded_vocabulary(vocabulary: int) -> None:
    """vLLM slices its padding off, or masks as many columns from the end: no real token may be lost."""
    tensor = torch.randn(vocabulary, HIDDEN).bfloat16()
    head = plain_head(vocabulary)
    load(head, tensor)
    processor = LogitsProcessor(vocabulary)
    # A row of the table is most like itself: the best tokens are among the last, where padding is masked.
    hidden = tensor[-8:].float()
    expected = hidden @ tensor.float().T
    logits = processor(head, hidden)
    assert logits is not None
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    best = expected.argmax(-1)
    assert (best >= vocabulary - 28).any(), "the last tokens are part of this test"
    assert torch.equal(processor.get_top_tokens(head, hidden), best)
    with_bias = processor(head, hidden, torch.ones(head.num_embeddings_padded))
    torch.testing.assert_close(with_bias, expected + 1, rtol=1e-5, atol=1e-5)
    # vLLM would compute a head of another type itself, from a weight that is not padded here.
    processor.head_dtype = torch.float64
    with pytest.raises(ValueError, match="only supported for an unquantized lm_head"):
        processor(head, hidden)


@pytest.mark.parametrize("head_dtype", [torch.float32, torch.bfloat16])
def test_a_head_of_another_type_is_vllms(head_dtype: torch.dtype) -> None:
    """Table and head: a tie needs both padded. vLLM then finds the best tokens and adds a bias."""
    current = VllmConfig()
    model = SimpleNamespace(runner_type="generate", head_dtype=head_dtype, dtype=torch.bfloat16)
    object.__setattr__(current, "model_config", model)
    with set_current_vllm_config(current):
        table, head = plain_table(torch.bfloat16), plain_head(dtype=torch.bfloat16)
    expected_type = DenseEmbeddingMethod if head_dtype == model.dtype else UnquantizedEmbeddingMethod
    assert type(table.quant_method) is type(head.quant_method) is expected_type
    stored = torch.randn(VOCABULARY, HIDDEN).bfloat16()
    load(head, stored)
    processor = LogitsProcessor(VOCABULARY)
    processor.head_dtype = head_dtype
    hidden = stored[-8:]
    best = (hidden.float() @ stored.float().T).argmax(-1)
    assert torch.equal(processor.get_top_tokens(head, hidden), best)
    with_bias = processor(head, hidden, torch.ones(head.num_embeddings_padded, dtype=head_dtype))
    assert with_bias.shape == (8, VOCABULARY)
    assert with_bias.dtype == head_dtype


def test_a_table_that_cannot_be_used_where_it_lies_is_copied_once() -> None:
    wide = torch.randn(VOCABULARY, HIDDEN)
    layer = plain_table(torch.bfloat16)
    load(layer, wide)
    assert layer.weight.dtype == torch.bfloat16
    assert torch.equal(layer.weight, wide.bfloat16())
    odd = torch.empty(2 * VOCABULARY * HIDDEN + 1, dtype=torch.uint8)[1:]
    odd.copy_(wide.half().flatten().view(torch.uint8))
    misaligned = torch.frombuffer(odd.numpy(), dtype=torch.float16).view(VOCABULARY, HIDDEN)
    layer = plain_table(torch.float16)
    for stored in (misaligned, wide.half().T.contiguous().T):
        load(layer, stored)
        assert torch.equal(layer.weight, wide.half())
        assert layer.weight.data_ptr() % 2 == 0
        assert layer.weight.is_contiguous()


def test_what_does_not_fit_is_refused() -> None:
    layer = plain_table()
    with pytest.raises(FormatError, match=r"embed: the checkpoint holds no weight of \[100, 32\]"):
        layer.quant_method.process_weights_after_loading(layer)
    for bad, message in (
        (
            torch.zeros(VOCABULARY + 1, HIDDEN),
            r"embed: expected .*\[100, 32\].*, found torch.float32 \[101, 32\]",
        ),
        (torch.zeros(VOCABULARY, HIDDEN, dtype=torch.int8), "found torch.int8"),
    ):
        with pytest.raises(FormatError, match=message):
            load(layer, bad)
    packed = VocabParallelEmbedding(
        VOCABULARY, HIDDEN, quant_config=config_of("embed"), prefix="embed", disable_tp=True
    )
    assert isinstance(packed.quant_method, Int4EmbeddingMethod)
    with pytest.raises(FormatError, match="lm_head: not packed, but tied to an embedding table that is"):
        plain_head().tie_weights(packed)


def test_tables_with_rows_of_an_adapter_stay_with_vllm() -> None:
    assert type(plain_table().quant_method) is DenseEmbeddingMethod
    added = plain_table(num_embeddings=VOCABULARY + 8, org_num_embeddings=VOCABULARY)
    assert type(added.quant_method) is UnquantizedEmbeddingMethod


def copies(model: torch.nn.Module) -> dict[str, Any]:
    """Where table and head lie, the ranges that plain weights are mapped at, and modules with a weight of
    oneDNN's beside their own."""
    table, head = model.model.embed_tokens, model.lm_head
    mapped = [
        tuple(int(bound, 16) for bound in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "model-00002" in line
    ]
    return {
        "addresses": [layer.weight.data_ptr() for layer in (table, head)],
        "dtypes": [layer.weight.dtype for layer in (table, head)],
        "methods": [type(layer.quant_method).__name__ for layer in (table, head)],
        "mapped": mapped,
        "handlers": [name for name, module in model.named_modules() if hasattr(module, "cpu_linear")],
    }


@pytest.mark.engine
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tied", [True, False])
def test_the_engine_serves_a_plain_table_and_head_from_the_file(
    tied: bool, stored: torch.dtype, tmp_path: Path
) -> None:
    checkpoint = TinyCheckpoint(dtype=stored, tied=tied, ignore=("embed_tokens", "lm_head"))
    reference = checkpoint.write(tmp_path / "model")
    with engine(tmp_path / "model", dtype="float32", **BOUNDS) as llm:
        # The table keeps its bits, so an fp32 model is exact but for the order of sums.
        assert max(errors(llm, reference)) < 2e-3
        found = llm.apply_model(copies)[0]
        _rust.reset_kernel_calls()
        observed(llm)
        ran = {row.kernel: row.layers for row in _rust.kernel_calls()}
    assert found["methods"] == ["DenseEmbeddingMethod"] * 2
    assert found["dtypes"] == [stored] * 2
    assert found["handlers"] == []
    assert (len(set(found["addresses"])) == 1) == tied
    for address in found["addresses"]:
        assert any(low <= address < high for low, high in found["mapped"]), "a copy"
    assert ran[_rust.select_dense_kernel("f32", DTYPE_NAMES[stored])] == 1
    assert ran[f"rows-w{8 * stored.itemsize}"] == 1


@pytest.mark.engine
def test_a_bf16_engine_runs_bf16_products(tmp_path: Path) -> None:
    TinyCheckpoint(dtype=torch.bfloat16, ignore=("embed_tokens",)).write(tmp_path / "model")
    with engine(tmp_path / "model", dtype="bfloat16", **BOUNDS | {"enforce_eager": False}) as llm:
        _rust.reset_kernel_calls()
        observed(llm)
        ran = {row.kernel for row in _rust.kernel_calls()}
        assert llm.apply_model(copies)[0]["handlers"] == []
    assert _rust.select_dense_kernel("bf16", "bf16") in ran
    assert "rows-w16" in ran
