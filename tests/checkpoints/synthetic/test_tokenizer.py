from __future__ import annotations

import hashlib
import json

import pytest
from tokenizers import Tokenizer

from vllm_omni.checkpoints.synthetic import tokenizer as synthetic
from vllm_omni.errors import OmniError

SIZE = 2048


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(synthetic.tokenizer_files(SIZE, 128).files["tokenizer.json"])


def test_the_vocabulary_is_the_same_on_every_machine() -> None:
    """A changed digest changes what every synthetic checkpoint reads."""
    words = synthetic.vocabulary(SIZE)
    text = json.dumps([words.tokens, words.merges])
    assert hashlib.sha256(text.encode()).hexdigest().startswith("4b1eaa1244c7a6b0")


@pytest.mark.parametrize(
    "text",
    [
        "The people of the house: write a function, and return 3.14!",
        "naïve — 数字 🙂\n\ttabs\r\n  spaces  ",
        "".join(map(chr, range(32, 1000))),
    ],
)
def test_any_text_comes_back(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_frequent_words_are_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(" the people would have time").tokens == [
        "Ġthe", "Ġpeople", "Ġwould", "Ġhave", "Ġtime",
    ]  # fmt: skip


def test_every_id_can_be_decoded_and_no_two_alike(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == SIZE
    filler = [tokenizer.decode([token_id]) for token_id in range(1283, SIZE)]
    assert filler[-1] == f" #{SIZE - 1}"
    assert len(set(filler)) == len(filler)
    # Encoding never produces what fills the vocabulary up.
    assert max(tokenizer.encode(f" #{SIZE - 1} #1500").ids) < 1283


def test_special_tokens_stand_alone(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user\nhello<|im_end|>").ids
    assert ids[0] == 1
    assert ids[-1] == 2


def test_the_folder_is_one_for_transformers(tmp_path) -> None:
    from transformers import AutoTokenizer

    synthetic.tokenizer_files(SIZE, 128).write(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 0)
    messages = [{"role": "user", "content": "hello"}]
    ids = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert loaded.decode(ids) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_a_vocabulary_that_is_too_small_is_refused() -> None:
    with pytest.raises(OmniError, match="vocabulary: expected at least 1283 tokens, found 1000"):
        synthetic.vocabulary(1000)
