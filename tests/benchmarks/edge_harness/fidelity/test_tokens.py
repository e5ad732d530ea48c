from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.edge_harness.fidelity.tokens import (
    gguf_words,
    load_tokenizer,
    require_same_tokens,
    require_same_vocabulary,
    require_same_words,
    words_of,
)
from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe
from vllm_omni.errors import OmniError


def test_folder_and_gguf_of_one_model_read_alike(tmp_path: Path) -> None:
    make_model(Recipe.checked("tiny-llama", format="packed"), tmp_path / "folder")
    make_model(Recipe.checked("tiny-llama", format="gguf-f16"), tmp_path / "gguf")
    (file,) = (tmp_path / "gguf").glob("*.gguf")
    words = words_of(load_tokenizer(tmp_path / "folder"))
    assert len(words) == 2048
    require_same_words(words, gguf_words(file), "file")


def test_other_tokenizers_are_refused_in_one_line() -> None:
    model = torch.arange(20).reshape(2, 10)
    require_same_tokens(model, model.clone(), "other")
    changed = model.clone()
    changed[1, 3] = 99
    with pytest.raises(OmniError, match=r"--reference other: .*window 1, token 3 is 13 in the model, 99"):
        require_same_tokens(model, changed, "other")


def test_an_id_that_means_another_token_is_refused_in_one_line() -> None:
    model = ["a", "b", None, "d"]
    # What one side does not have is not compared: tables are padded.
    require_same_words(model, ["a", "b", "c"], "other")
    require_same_words(model, ["a", "b", "c", "d", "e"], "other")
    with pytest.raises(OmniError, match=r"--reference other: .* token 1 is 'b' in the model, 'x' in the"):
        require_same_words(model, ["a", "x", "c", "d"], "other")
    with pytest.raises(OmniError, match="found no token"):
        require_same_words(model, [], "other")


def test_other_vocabularies_are_refused_in_one_line() -> None:
    require_same_vocabulary(100, 100, "other")
    with pytest.raises(OmniError, match=r"--reference other: expected a head of 100 words .* found 128"):
        require_same_vocabulary(100, 128, "other")


def test_a_folder_without_a_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="expected a tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
