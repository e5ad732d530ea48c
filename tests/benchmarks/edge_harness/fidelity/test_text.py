from __future__ import annotations

import pydoc_data.topics

import pytest
import torch

from benchmarks.edge_harness.fidelity.text import TOPICS, token_windows, windows_sha256
from vllm_omni.errors import OmniError


class Letters:
    """One token per character."""

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


def test_the_first_windows_are_the_fixed_topics() -> None:
    windows = token_windows(Letters(), tokens=100)
    assert windows.shape == (len(TOPICS), 100)
    for topic, window in zip(TOPICS, windows, strict=True):
        assert "".join(map(chr, window)) == pydoc_data.topics.topics[topic][:100]


def test_more_windows_begin_with_the_same_ones() -> None:
    few, many = token_windows(Letters(), 4, 100), token_windows(Letters(), 9, 100)
    assert torch.equal(many[:4], few)
    assert len({tuple(window.tolist()) for window in many}) == 9


def test_texts_that_are_too_short_are_left_out_and_too_few_refused() -> None:
    long = [text for text in pydoc_data.topics.topics.values() if len(text) >= 5000]
    assert len(token_windows(Letters(), len(long), 5000)) == len(long)
    with pytest.raises(OmniError, match=f"--windows {len(long) + 1}: expected at most {len(long)}"):
        token_windows(Letters(), len(long) + 1, 5000)


def test_the_digest_is_of_the_ids() -> None:
    windows = token_windows(Letters(), 2, 50)
    changed = windows.clone()
    changed[1, 49] += 1
    assert windows_sha256(windows) == windows_sha256(windows.clone())
    assert windows_sha256(windows) != windows_sha256(changed)
