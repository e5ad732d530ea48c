"""Tokenizer files from a GGUF's metadata.

Built with the ``tokenizers`` library from the vocabulary, the merges and the name of the pre-tokenizer that
the file carries. The pre-tokenizer decides the ids as much as the merges do (whether digits stand alone,
whether a newline joins punctuation), so a name without a verified counterpart here is refused, not
approximated.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from vllm_omni.checkpoints.gguf_source import GgufSource
from vllm_omni.errors import FormatError


@dataclass(frozen=True)
class PreTokenizer:
    """What the name in ``tokenizer.ggml.pre`` stands for."""

    build: Callable[[], pre_tokenizers.PreTokenizer]
    # A word that is in the vocabulary is one token even where the merges would not form it.
    ignore_merges: bool = False
    # Whether a sequence begins with the BOS token when the file does not say.
    add_bos: bool = False


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> pre_tokenizers.PreTokenizer:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(_gpt2),
    "llama-bpe": PreTokenizer(_llama3, ignore_merges=True, add_bos=True),
    "smollm": PreTokenizer(_single_digits_then_gpt2),
}

_SPECIAL_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class TokenizerFiles:
    """``tokenizer.json``, ``tokenizer_config.json`` and the chat templates: file names with their text."""

    files: dict[str, str]

    @property
    def nbytes(self) -> int:
        return sum(len(text.encode()) for text in self.files.values())

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")


def tokenizer_files(source: GgufSource, *, vocab_size: int, max_length: int) -> TokenizerFiles:
    """Build the tokenizer of a file whose embedding table has ``vocab_size`` rows.

    Raises ``FormatError`` for a tokenizer model or pre-tokenizer that is not supported (named), and for a
    vocabulary that contradicts itself or the table.
    """
    model = source.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise FormatError(
            f"{source.path}: tokenizer model {model!r} is not supported; supported: gpt2 (byte-level BPE)"
        )
    pre_name = source.get("tokenizer.ggml.pre", "")
    if pre_name not in PRE_TOKENIZERS:
        raise FormatError(
            f"{source.path}: pre-tokenizer {pre_name!r} is not supported; "
            f"supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    pre = PRE_TOKENIZERS[pre_name]
    tokens, types = _vocabulary(source, vocab_size)
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        bpe = models.BPE(vocab=vocab, merges=_merges(source), ignore_merges=pre.ignore_merges)
    except Exception as error:  # the library raises Exception itself for merges outside the vocabulary
        raise FormatError(
            f"{source.path}: tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}"
        ) from error
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    for kind, is_special in ((TokenType.CONTROL, True), (TokenType.USER_DEFINED, False)):
        tokenizer.add_tokens(
            [
                AddedToken(token, normalized=False, special=is_special)
                for token, found in zip(tokens, types, strict=True)
                if found == kind
            ]
        )
    special = _special_tokens(source, tokens)
    if source.get("tokenizer.ggml.add_bos_token", pre.add_bos):
        if "bos_token" not in special:
            raise FormatError(
                f"{source.path}: sequences begin with BOS, but tokenizer.ggml.bos_token_id is missing"
            )
        bos = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, vocab[bos])]
        )
    if source.get("tokenizer.ggml.add_eos_token", False):
        raise FormatError(f"{source.path}: tokenizer.ggml.add_eos_token is true: only false is supported")
    if source.get("tokenizer.ggml.add_space_prefix", False):
        raise FormatError(f"{source.path}: tokenizer.ggml.add_space_prefix is true: only false is supported")
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": _json(_tokenizer_config(special, max_length)),
    }
    return TokenizerFiles(files | _chat_templates(source))


def _vocabulary(source: GgufSource, vocab_size: int) -> tuple[list[str], list[int]]:
    tokens = source.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise FormatError(f"{source.path}: tokenizer.ggml.tokens: expected a list of strings")
    if len(tokens) > vocab_size:
        raise FormatError(
            f"{source.path}: {len(tokens)} tokens, but the table 'token_embd.weight' has {vocab_size} rows"
        )
    if len(set(tokens)) != len(tokens):
        ((double, _),) = Counter(tokens).most_common(1)
        raise FormatError(f"{source.path}: token {double!r} is in tokenizer.ggml.tokens twice")
    types = source.get("tokenizer.ggml.token_type", [int(TokenType.NORMAL)] * len(tokens))
    if len(types) != len(tokens):
        raise FormatError(f"{source.path}: {len(types)} token types for {len(tokens)} tokens")
    return tokens, types


def _merges(source: GgufSource) -> list[tuple[str, str]]:
    merges = []
    for text in source.get("tokenizer.ggml.merges", []):
        left, space, right = str(text).partition(" ")
        if not (left and space and right) or " " in right:
            raise FormatError(
                f"{source.path}: tokenizer.ggml.merges: expected two tokens and a space, found {text!r}"
            )
        merges.append((left, right))
    return merges


def _special_tokens(source: GgufSource, tokens: list[str]) -> dict[str, str]:
    special = {}
    for role, key in _SPECIAL_ROLES.items():
        token_id = source.token_id(key)
        if token_id is not None:
            special[role] = tokens[token_id]
    return special


def _tokenizer_config(special: dict[str, str], max_length: int) -> dict[str, Any]:
    return {
        # The class that takes tokenizer.json as it is; a model's own class would rebuild the pre-tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }


def _chat_templates(source: GgufSource) -> dict[str, str]:
    files = {}
    template = source.get("tokenizer.chat_template", "")
    if template:
        files["chat_template.jinja"] = template
    for name in source.get("tokenizer.chat_templates", []):
        if not _TEMPLATE_NAME.fullmatch(str(name)):
            raise FormatError(
                f"{source.path}: chat template name {name!r}: expected letters, digits, '-' and '_'"
            )
        files[f"additional_chat_templates/{name}.jinja"] = source.get(f"tokenizer.chat_template.{name}", "")
    return files


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
