from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.edge_harness.fidelity import greedy, prompts
from benchmarks.edge_harness.fidelity.folder_weights import decoder_of
from vllm_omni.checkpoints.synthetic import tokenizer as synthetic
from vllm_omni.checkpoints.synthetic.make import make_model
from vllm_omni.checkpoints.synthetic.recipe import Recipe


def test_first_divergence_is_counted_in_new_tokens() -> None:
    same = greedy.compare("a", [1], [5, 6, 7, 8], [5, 6, 7, 8])
    late = greedy.compare("b", [1], [5, 6, 7, 8], [5, 6, 7, 9])
    at_once = greedy.compare("c", [1], [5, 6, 7, 8], [4, 6, 7, 8])
    assert [c.first_divergence for c in (same, late, at_once)] == [None, 3, 0]
    found = greedy.summary([same, late, at_once])
    assert (found["prompts"], found["new_tokens"], found["exact_matches"]) == (3, 4, 1)
    assert found["mean_prefix"] == pytest.approx((1 + 0.75 + 0) / 3)
    assert found["detail"][1]["found"] == [5, 6, 7, 9]


def test_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="a: expected 2 new tokens, found 1"):
        greedy.compare("a", [1], [5, 6], [5])


def test_the_margin_is_the_lead_of_the_expected_token(tmp_path: Path) -> None:
    make_model(Recipe.checked("tiny-llama", format="bf16"), tmp_path / "m")
    decoder = decoder_of(tmp_path / "m")
    prompt = [300, 400, 500]
    expected = decoder.greedy(prompt, 4)
    other = [*expected[:2], (expected[2] + 1) % 2048, expected[3]]
    parted = greedy.compare("p", prompt, expected, other, decoder)
    assert parted.first_divergence == 2
    assert parted.margin is not None
    assert parted.margin > 0


def test_there_are_four_prompts_of_each_kind(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    synthetic.tokenizer_files(2048, 4096).write(tmp_path)
    ids = prompts.prompt_ids(AutoTokenizer.from_pretrained(tmp_path))
    kinds = [name.partition("_")[0] for name in ids]
    assert {kind: kinds.count(kind) for kind in kinds} == {"chat": 4, "tools": 4, "plain": 4}
    assert len({tuple(prompt) for prompt in ids.values()}) == 12
    # A chat begins with the template's first special token and ends with the assistant's turn.
    assert all(prompt[0] == 1 for name, prompt in ids.items() if not name.startswith("plain"))
