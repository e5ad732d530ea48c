"""An in-process vLLM engine for a capture, started and taken down whole."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vllm import LLM


@contextlib.contextmanager
def engine(folder: Path, **settings: Any) -> Iterator[LLM]:
    """``LLM(folder, **settings)`` in this process.

    The environment must ask for an engine in process before vLLM is imported. Only one may live at a time:
    vLLM's distributed state is global to a process.
    """
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    default_dtype = torch.get_default_dtype()
    try:
        llm = LLM(str(folder), **settings)
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
