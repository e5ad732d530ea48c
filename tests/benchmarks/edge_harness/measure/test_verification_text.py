"""The fixed text as exactly 64 ids."""

from __future__ import annotations

import pytest

from benchmarks.edge_harness.measure.verification_text import TEXT, TOKENS, ids_digest, verification_ids


def test_the_first_64_ids_of_the_text() -> None:
    ids = verification_ids(lambda text: [ord(letter) for letter in text])
    assert ids == [ord(letter) for letter in TEXT[:TOKENS]]


def test_a_tokenizer_with_long_tokens_repeats_the_text() -> None:
    assert verification_ids(lambda text: range(50)) == [*range(50), *range(14)]
    with pytest.raises(ValueError, match="no token"):
        verification_ids(lambda text: [])


def test_the_digest_is_of_the_ids_alone() -> None:
    # sha256 of the text "1,2,3".
    assert ids_digest([1, 2, 3]) == "8a6ae15122001229edb8866f56e342af12ae8187203c3e3b33931743e7c0c48d"
    assert ids_digest([12, 3]) != ids_digest([1, 23])
