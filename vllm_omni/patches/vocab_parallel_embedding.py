"""``VocabParallelEmbedding.__init__``: the quantization configuration reaches tables that a model builds
without it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from vllm_omni.patch import Patch, Proof, resolve

_TARGET = "vllm.model_executor.layers.vocab_parallel_embedding.VocabParallelEmbedding.__init__"


def wrap(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        if bound.arguments.get("quant_config") is None:
            quant_config = active_config()
            if quant_config is not None:
                bound.arguments["quant_config"] = quant_config
        original(*bound.args, **bound.kwargs)

    return __init__


def active_config() -> Any:
    """The model's quantization configuration where it is ours, else ``None``."""
    from vllm.config import get_current_vllm_config_or_none

    from vllm_omni.quantization.cpu_int4 import CpuInt4Config

    vllm_config = get_current_vllm_config_or_none()
    quant_config = vllm_config.quant_config if vllm_config is not None else None
    return quant_config if isinstance(quant_config, CpuInt4Config) else None


def prove() -> Proof:
    """Build a table without a configuration while ours is the active one, and look at its method."""
    from vllm.config import VllmConfig, set_current_vllm_config

    from vllm_omni.quantization.cpu_int4 import CpuInt4Config
    from vllm_omni.quantization.embedding_method import Int4EmbeddingMethod
    from vllm_omni.quantization.options import Int4Options

    vllm_config = VllmConfig()
    vllm_config.quant_config = CpuInt4Config(Int4Options(1, "proof"))
    table_class = resolve(_TARGET.rpartition(".")[0])
    methods = {}
    was_applied = PATCH.is_applied()
    try:
        with set_current_vllm_config(vllm_config):
            for patched in (False, True):
                PATCH.apply() if patched else PATCH.undo()
                methods[patched] = table_class(64, 8, disable_tp=True).quant_method
    finally:
        PATCH.apply() if was_applied else PATCH.undo()
    before, after = (methods[patched] for patched in (False, True))
    works = isinstance(after, Int4EmbeddingMethod)
    return Proof(
        needed=not isinstance(before, Int4EmbeddingMethod),
        effective=was_applied and works,
        detail=f"a table without quant_config: {type(before).__name__} before, {type(after).__name__} after",
    )


PATCH = Patch(
    target=_TARGET,
    stage="engine",
    why=(
        "Most of vLLM's models build their embedding table without the quantization configuration, so a "
        "packed table finds no parameter to load into."
    ),
    how="Where none is given and cpu_int4 is active, pass its configuration; then call the original.",
    upstream="https://github.com/vllm-project/vllm/issues/54304",
    remove_when="every model passes quant_config to its VocabParallelEmbedding",
    tested_versions="==0.28.0",
    source=_TARGET,
    source_sha256="66d9eb16d86a571de1d00816590cf073d404c3814b599099da89e8ac56a89753",
    wrap=wrap,
    prove=prove,
)
