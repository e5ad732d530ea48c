"""A byte-level BPE tokenizer for synthetic checkpoints, the same on every machine.

Its merges are trained on a list of frequent English words; whatever else a text holds is encoded by bytes.
The vocabulary is then filled up to the model's size with tokens that encoding never produces, so that any id
that a random model samples can be decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from vllm_omni.checkpoints.gguf_tokenizer import TokenizerFiles
from vllm_omni.checkpoints.synthetic.model_config import BOS_TOKEN_ID, EOS_TOKEN_ID, PAD_TOKEN_ID
from vllm_omni.errors import OmniError

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# What GGUF calls the pre-tokenizer that this one is.
GGUF_PRE_TOKENIZER = "gpt-2"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MERGES = 1024


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, special ones first, and the merges in order."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]


def vocabulary(size: int) -> Vocabulary:
    """Exactly ``size`` tokens. Raises ``OmniError`` where that is less than the trained ones."""
    trained, merges = _trained()
    if size < len(trained):
        raise OmniError(f"vocabulary: expected at least {len(trained)} tokens, found {size}")
    # "Ġ" is byte-level BPE's space: these decode to " #1300" and the like.
    filler = (f"Ġ#{token_id}" for token_id in range(len(trained), size))
    return Vocabulary((*trained, *filler), merges)


def tokenizer_files(size: int, max_length: int) -> TokenizerFiles:
    """The files of a model folder, for a table of ``size`` rows."""
    words = vocabulary(size)
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(words.tokens)}, list(words.merges)))
    _finish(tokenizer)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_TOKEN_ID],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "pad_token": SPECIAL_TOKENS[PAD_TOKEN_ID],
        "unk_token": SPECIAL_TOKENS[PAD_TOKEN_ID],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    return TokenizerFiles(
        {
            "tokenizer.json": tokenizer.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
            "chat_template.jinja": CHAT_TEMPLATE,
        }
    )


def _finish(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS])


@cache
def _trained() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL_TOKENS) + len(alphabet) + _MERGES,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(alphabet),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    by_id = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tuple(by_id), tuple((left, right) for left, right in model["merges"])


def _training_text() -> Iterator[str]:
    """Words by rank, repeated by Zipf's law, with a space before them as inside a sentence and without."""
    source = resources.files("vllm_omni.checkpoints.synthetic").joinpath("frequent_words.txt")
    words = source.read_text(encoding="utf-8").split()
    for rank, word in enumerate(words, 1):
        repeats = 1 + 4 * len(words) // rank
        yield f" {word}" * repeats
        yield from [word, word.capitalize()] * max(1, repeats // 8)
