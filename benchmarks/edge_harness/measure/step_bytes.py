"""Bytes that one decode step has to read, from the checkpoint's headers and the model's geometry.

Every weight once, whatever the batch, and each sequence's keys and values. An embedding table is read row by
row and counts only where the head is tied to it. Activations stay in the caches. Of a mixture of experts a
step reads some experts only, so its bytes are an upper bound and no share is derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_omni.checkpoints.safetensors_file import read_header
from vllm_omni.cli.engine_defaults import ModelShape
from vllm_omni.quantization.packed_folder import PackedFolder, read_packed_folder

_TABLES = ("embed_tokens", "wte", "word_embeddings")
_HEAD = "lm_head"


@dataclass(frozen=True)
class StepBytes:
    """``weight_bytes`` is ``None`` where it cannot be derived; ``why`` says so."""

    weight_bytes: int | None
    kv_bytes_per_token: int
    why: str | None = None

    def read_bytes(self, context_tokens: float, batch: int) -> float | None:
        """Of one step with ``batch`` sequences of ``context_tokens`` tokens each."""
        if self.weight_bytes is None:
            return None
        return self.weight_bytes + batch * context_tokens * self.kv_bytes_per_token


def step_bytes(path: Path, engine_args: Mapping[str, Any] | None = None) -> StepBytes:
    """``engine_args``: vLLM's options, of which the types of weights and cache matter. Raises
    :class:`~vllm_omni.errors.OmniError` for a folder that cannot be read."""
    folder = read_packed_folder(path)
    config = folder.text_config
    kv = kv_bytes_per_token(folder, engine_args)
    asked = (engine_args or {}).get("dtype")
    if (_element_bytes(asked) or _own_bytes(folder)) != _own_bytes(folder):
        return StepBytes(None, kv, f"dtype {asked} gives the weights another size than the file's")
    experts = [name for name in config if name in ("num_experts", "num_local_experts", "n_routed_experts")]
    if any(int(config[name] or 0) > 1 for name in experts):
        return StepBytes(None, kv, "a mixture of experts reads a part of its weights in each step")
    sizes = {
        entry.name: entry.nbytes
        for file in sorted(path.glob("*.safetensors"))
        for entry in read_header(file).entries
    }
    if not sizes:
        return StepBytes(None, kv, "the weights are not safetensors: their sizes are not known by name")
    return StepBytes(sum(sizes.values()) - _unread_table_bytes(folder, sizes), kv)


def kv_bytes_per_token(folder: PackedFolder, engine_args: Mapping[str, Any] | None = None) -> int:
    """Over all layers, in the cache's own type: that of ``kv_cache_dtype``, else the one computed in."""
    asked = engine_args or {}
    element = _element_bytes(asked.get("kv_cache_dtype")) or _element_bytes(asked.get("dtype"))
    own = _own_bytes(folder)
    return ModelShape.read(folder).kv_bytes_per_token // own * (element or own)


def _own_bytes(folder: PackedFolder) -> int:
    """Of a number in the type that the model's config names."""
    config = folder.text_config
    return _element_bytes(config.get("dtype") or config.get("torch_dtype")) or 2


def _element_bytes(dtype: object) -> int | None:
    """Of a type's name in a config or an option; ``None`` for "auto" and what says nothing."""
    name = str(dtype or "").removeprefix("torch.")
    if name.startswith(("fp8", "int8", "uint8", "float8")):
        return 1
    return {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}.get(name)


def _unread_table_bytes(folder: PackedFolder, sizes: dict[str, int]) -> int:
    """Bytes of the embedding table where the model has a head of its own."""
    has_head = any(_HEAD in name.split(".") for name in sizes)
    if not has_head and folder.text_config.get("tie_word_embeddings", True):
        return 0
    return sum(size for name, size in sizes.items() if set(name.split(".")) & set(_TABLES))
