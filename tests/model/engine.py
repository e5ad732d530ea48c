"""An in-process vLLM engine for a capture, started and taken down whole."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.model.text import TOPICS, WINDOW_TOKENS

if TYPE_CHECKING:
    from vllm import LLM

KV_CACHE_BYTES = 256 << 20


@contextlib.contextmanager
def engine(folder: Path, **options: Any) -> Iterator[LLM]:
    """`LLM(folder)` in this process, sized for all windows in one step; `options` override.

    Only one may live at a time: vLLM's distributed state is global to a process.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM
        from vllm.distributed import cleanup_dist_env_and_memory

        settings: dict[str, Any] = {
            "dtype": "bfloat16",
            "max_model_len": WINDOW_TOKENS + 128,
            "max_num_seqs": len(TOPICS),
            "max_num_batched_tokens": len(TOPICS) * WINDOW_TOKENS,
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
            "enable_prefix_caching": True,
        }
        default_dtype = torch.get_default_dtype()
        try:
            llm = LLM(str(folder), **settings | options)
        finally:
            # The worker sets the model's for good, as it may in a process of its own.
            torch.set_default_dtype(default_dtype)
        try:
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            cleanup_dist_env_and_memory()
            gc.collect()
