from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vllm_omni.checkpoints.gguf_source import GgufSource
from vllm_omni.checkpoints.gguf_tokenizer import tokenizer_files
from vllm_omni.errors import FormatError

DATA = Path(__file__).parents[1] / "data"
SPLIT = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def built(path: Path) -> Tokenizer:
    files = tokenizer_files(GgufSource(path), vocab_size=49152, max_length=256).files
    return Tokenizer.from_str(files["tokenizer.json"])


class PlainBpe:
    """Byte-level BPE straight from the metadata, one merge at a time; digits stand alone."""

    def __init__(self, source: GgufSource) -> None:
        self.ids = {token: i for i, token in enumerate(source.get("tokenizer.ggml.tokens"))}
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(source.get("tokenizer.ggml.merges"))}
        self.letters = bytes_to_unicode()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in regex.split(r"(\p{N})", text):
            for word in SPLIT.findall(piece):
                ids += self.word([self.letters[byte] for byte in word.encode()])
        return ids

    def word(self, parts: list[str]) -> list[int]:
        while len(parts) > 1:
            pairs = [(self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(pairwise(parts))]
            rank, i = min(pairs)
            if rank == len(self.ranks):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[part] for part in parts]


@pytest.fixture(scope="module")
def source(smollm2_gguf: Path) -> GgufSource:
    return GgufSource(smollm2_gguf)


@pytest.fixture(scope="module")
def smollm2(source: GgufSource) -> Tokenizer:
    files = tokenizer_files(source, vocab_size=49152, max_length=8192).files
    return Tokenizer.from_str(files["tokenizer.json"])


@pytest.mark.model
def test_ids_equal_llama_cpp(smollm2: Tokenizer) -> None:
    rows = json.loads((DATA / "smollm2_tokens.json").read_text())
    assert len(rows) > 200
    for row in rows:
        assert smollm2.encode(row["text"]).ids == row["ids"], row["text"]


@pytest.mark.model
def test_ids_equal_a_plain_bpe_on_long_text(source: GgufSource, smollm2: Tokenizer) -> None:
    plain = PlainBpe(source)
    for path in (Path(__file__), DATA / "README.md", Path(tokenizer_files.__code__.co_filename)):
        text = path.read_text()
        # Special tokens in the text are another matter: they are matched whole before the merges.
        text = text.replace("<|", "< |")
        assert smollm2.encode(text).ids == plain.encode(text)


@pytest.mark.model
def test_text_survives_a_round_trip(smollm2: Tokenizer) -> None:
    for row in json.loads((DATA / "smollm2_tokens.json").read_text()):
        assert smollm2.decode(row["ids"], skip_special_tokens=False) == row["text"]


@pytest.mark.model
def test_the_folder_loads_as_it_was_built(smollm2_folder: Path, smollm2: Tokenizer) -> None:
    """transformers picks a class by ``tokenizer_class`` and may rebuild the pre-tokenizer: not here."""
    loaded = AutoTokenizer.from_pretrained(smollm2_folder)
    for row in json.loads((DATA / "smollm2_tokens.json").read_text()):
        assert loaded(row["text"])["input_ids"] == row["ids"]
    assert len(loaded) == 49152
    assert (loaded.bos_token, loaded.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (loaded.unk_token, loaded.pad_token) == ("<|endoftext|>", "<|im_end|>")
    assert loaded.model_max_length == 8192
    assert loaded.decode([1, 4093, 2], skip_special_tokens=True) == "user"


@pytest.mark.model
def test_the_chat_template_renders(smollm2_folder: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(smollm2_folder)
    messages = [{"role": "user", "content": "What is 2+2?"}]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_digits_follow_the_pre_tokenizer(write_tiny: Callable[..., Path]) -> None:
    tokens = {"smollm": ["1", "2", "3", "4"], "llama-bpe": ["123", "4"], "gpt-2": ["1234"]}
    for pre, expected in tokens.items():
        pieces = built(write_tiny(pre=pre, name=f"{pre}.gguf")).pre_tokenizer.pre_tokenize_str("1234")
        assert [piece for piece, _ in pieces] == expected


def test_a_sequence_begins_with_bos_where_the_file_says_so(write_tiny: Callable[..., Path]) -> None:
    def ids(name: str, **fields: Any) -> list[int]:
        return built(write_tiny(name=name, **fields)).encode("hell").ids

    hell = len(("<|endoftext|>", "<|im_start|>", "<|im_end|>")) + 256 + 2
    assert ids("a", metadata={"tokenizer.ggml.add_bos_token": True}) == [1, hell]
    assert ids("b", metadata={"tokenizer.ggml.add_bos_token": False}) == [hell]
    assert ids("c") == [hell]
    # Llama 3's vocabularies begin with BOS even where the file does not say.
    assert ids("d", pre="llama-bpe") == [1, hell]


def test_special_and_user_defined_tokens_stay_whole(write_tiny: Callable[..., Path]) -> None:
    types = [3, 3, 4] + [1] * 260
    tokenizer = built(write_tiny(metadata={"tokenizer.ggml.token_type": types}))
    ids = tokenizer.encode("he<|im_start|>he<|im_end|>").ids
    assert ids[1] == 1
    assert ids[3] == 2
    # A control token is dropped when special tokens are skipped, a user-defined one is text.
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hehe<|im_end|>"


def test_named_chat_templates(write_tiny: Callable[..., Path]) -> None:
    metadata = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "T"}
    files = tokenizer_files(GgufSource(write_tiny(metadata=metadata)), vocab_size=263, max_length=1).files
    assert files["additional_chat_templates/tool_use.jinja"] == "T"
    assert "chat_template.jinja" in files


def test_without_a_chat_template_there_is_no_file(write_tiny: Callable[..., Path]) -> None:
    files = tokenizer_files(GgufSource(write_tiny(chat_template=None)), vocab_size=263, max_length=1).files
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer model 'llama' is not supported; supported: gpt2"),
        (
            {"tokenizer.ggml.pre": "chameleon"},
            "pre-tokenizer 'chameleon' is not supported; supported: .*smollm",
        ),
        ({"tokenizer.ggml.pre": None}, "pre-tokenizer '' is not supported"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "token 'a' is in tokenizer.ggml.tokens twice"),
        ({"tokenizer.ggml.tokens": [f"t{i}" for i in range(300)]}, "300 tokens, .* has 263 rows"),
        ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 token types for 263 tokens"),
        ({"tokenizer.ggml.merges": ["h e", "q"]}, "expected two tokens and a space, found 'q'"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "merges do not fit"),
        ({"tokenizer.ggml.bos_token_id": 263}, "bos_token_id' is 263: expected a token id below 263"),
        (
            {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
            "bos_token_id is missing",
        ),
        ({"tokenizer.ggml.add_eos_token": True}, "add_eos_token is true"),
        ({"tokenizer.ggml.add_space_prefix": True}, "add_space_prefix is true"),
        ({"tokenizer.chat_templates": ["../../x"]}, r"chat template name '\.\./\.\./x'"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(
    write_tiny: Callable[..., Path], metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        tokenizer_files(GgufSource(write_tiny(metadata=metadata)), vocab_size=263, max_length=1)
