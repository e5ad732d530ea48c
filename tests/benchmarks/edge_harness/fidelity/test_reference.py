"""The plain forward against transformers, on tiny models of both architectures, however stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.edge_harness.fidelity.folder_weights import decoder_of, weights_in
from benchmarks.edge_harness.fidelity.reference import Decoder
from vllm_omni.checkpoints.synthetic.geometries import geometry
from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe
from vllm_omni.errors import FormatError

NAMES = ("tiny-llama", "tiny-llama-untied", "tiny-qwen3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    root = tmp_path_factory.mktemp("models")
    made = {}
    for name in NAMES:
        for format in ("packed", "bf16", "gptq", "gguf-f16"):
            made[name, format] = root / f"{name}-{format}"
            make_model(Recipe.checked(name, format=format), made[name, format])
    return made


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(3, 1283, (2, 40), generator=torch.Generator().manual_seed(0))


def gguf_file(folder: Path) -> Path:
    (file,) = folder.glob("*.gguf")
    return file


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(
    name: str, folders: dict[tuple[str, str], Path], tokens: torch.Tensor
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folders[name, "bf16"], dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(tokens).logits
    found = decoder_of(folders[name, "bf16"]).logits(tokens)
    assert expected.std() > 1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_scaled_rotary_embedding_is_that_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: torch.Tensor
) -> None:
    from dataclasses import replace

    from transformers import AutoModelForCausalLM

    from vllm_omni.checkpoints.synthetic.geometries import GEOMETRIES

    rule = dict(geometry("llama-1b").rope_scaling or {}) | {"original_max_position_embeddings": 64}
    row = replace(geometry("tiny-llama"), name="tiny-scaled", rope_scaling=rule, context=2048)
    monkeypatch.setitem(GEOMETRIES, row.name, row)
    for format in ("bf16", "gguf-f16"):
        make_model(Recipe.checked(row.name, format=format), tmp_path / format)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16", dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(tokens).logits
    scaled = decoder_of(tmp_path / "bf16")
    torch.testing.assert_close(scaled.logits(tokens), expected, atol=1e-4, rtol=0)
    file = Decoder.from_gguf(gguf_file(tmp_path / "gguf-f16"))
    torch.testing.assert_close(file.logits(tokens), expected, atol=1e-4, rtol=0)
    unscaled = Decoder(type(scaled.shape)(**{**scaled.shape.__dict__, "rope_divisors": None}), scaled.tensors)
    assert (unscaled.logits(tokens) - expected).abs().max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_file_is_the_same_model(
    name: str, folders: dict[tuple[str, str], Path], tokens: torch.Tensor
) -> None:
    file = Decoder.from_gguf(gguf_file(folders[name, "gguf-f16"]))
    folder = decoder_of(folders[name, "bf16"])
    assert torch.equal(file.logits(tokens), folder.logits(tokens))


@pytest.mark.parametrize("name", NAMES)
def test_packed_and_gptq_weights_are_read_alike(name: str, folders: dict[tuple[str, str], Path]) -> None:
    ours, theirs = decoder_of(folders[name, "packed"]), decoder_of(folders[name, "gptq"])
    assert ours.tensors.keys() == theirs.tensors.keys()
    for tensor in ours.tensors:
        if "ffn" in tensor or "attn" in tensor:
            assert torch.equal(ours.tensors[tensor], theirs.tensors[tensor]), tensor


def test_packed_weights_are_what_the_product_dequantizes(folders: dict[tuple[str, str], Path]) -> None:
    from vllm_omni import int4

    folder = folders["tiny-llama", "packed"]
    weights = int4.load_file(sorted(folder.glob("*.safetensors"))[0])
    tensors = decoder_of(folder).tensors
    for module, name in (
        ("model.embed_tokens", "token_embd"),
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down"),
    ):
        assert torch.equal(weights[f"{module}.weight_packed"].dequantize(), tensors[f"{name}.weight"])


def test_the_number_of_weights_is_known_without_reading_them(folders: dict[tuple[str, str], Path]) -> None:
    for format in ("packed", "bf16", "gptq"):
        assert weights_in(folders["tiny-llama", format]) == geometry("tiny-llama").parameters


def test_greedy_with_a_cache_is_greedy_without(
    folders: dict[tuple[str, str], Path], tokens: torch.Tensor
) -> None:
    for name in NAMES:
        decoder = decoder_of(folders[name, "bf16"]).to(torch.float32)
        # Random models repeat themselves; several prompts, so that several tokens come.
        for start in range(0, 40, 10):
            prompt = tokens[0, start : start + 8].tolist()
            text = list(prompt)
            for _ in range(6):
                text.append(int(decoder.logits(torch.tensor([text]))[0, -1].argmax()))
            assert decoder.greedy(prompt, 6) == text[8:]


def test_windows_one_by_one_are_the_batch(folders: dict[tuple[str, str], Path], tokens: torch.Tensor) -> None:
    decoder = decoder_of(folders["tiny-qwen3", "bf16"])
    by_window = torch.stack(list(decoder.logits_by_window(tokens)))
    torch.testing.assert_close(by_window, decoder.logits(tokens), atol=1e-4, rtol=0)


def test_a_model_that_it_does_not_compute_is_refused(tmp_path: Path) -> None:
    make_model(Recipe.checked("tiny-spark", format="bf16"), tmp_path / "spark")
    with pytest.raises(FormatError, match="model_type: expected llama or qwen3, found 'spark2_5'"):
        decoder_of(tmp_path / "spark")


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    make_model(Recipe.checked("tiny-llama", format="packed"), tmp_path / "m")
    sorted((tmp_path / "m").glob("*.safetensors"))[1].unlink()
    with pytest.raises(FormatError, match=r"no weight for model.norm"):
        decoder_of(tmp_path / "m")
