"""The harness's in-process engine with its environment, sized for all windows in one step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.edge_harness.fidelity import engine as harness
from benchmarks.edge_harness.fidelity.text import TOPICS, WINDOW_TOKENS

if TYPE_CHECKING:
    from vllm import LLM

KV_CACHE_BYTES = 256 << 20


@contextlib.contextmanager
def engine(folder: Path, **options: Any) -> Iterator[LLM]:
    """`LLM(folder)` in this process; `options` override. Only one may live at a time."""
    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": WINDOW_TOKENS + 128,
        "max_num_seqs": len(TOPICS),
        "max_num_batched_tokens": len(TOPICS) * WINDOW_TOKENS,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "enable_prefix_caching": True,
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        with harness.engine(folder, **settings | options) as llm:
            yield llm
