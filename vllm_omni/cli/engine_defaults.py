"""Bounded defaults of an engine: what it is given where the user said nothing, so that it starts on any box.

vLLM's own defaults on a CPU are the model's whole context, 92 % of the memory, 128 to 256 requests at once
and one core less than there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_omni import settings
from vllm_omni.cli.machine import Machine
from vllm_omni.errors import OmniError
from vllm_omni.quantization.packed_folder import PackedFolder, read_packed_folder

CONTEXT_TOKENS = 4096
# Requests that compute at once; more wait in vLLM's queue.
MAX_NUM_SEQS = 8
# Tokens of one step. A prompt is computed in chunks of this many, so that one step stays below seconds on two
# cores.
MAX_NUM_BATCHED_TOKENS = 512
# The KV cache holds this many full contexts, where the memory allows it.
KV_CONTEXTS = 2
# A context below this is not worth a start.
MIN_CONTEXT_TOKENS = 512
# vLLM's block on a CPU, and the blocks that it takes besides those of requests.
BLOCK_TOKENS = 128
SPARE_BLOCKS = 2
# Without a local folder the model's dimensions are not known.
KV_BYTES_OF_AN_UNKNOWN_MODEL = 1 << 30
# Anonymous memory of the processes of `vllm-omni serve` besides weights and KV cache: the largest RssAnon
# while SmolLM2-135M was compiled with nothing cached and then answered, 2 threads (MiB: server 670, engine
# 535, worker 690, compiler's process 227, tracker 5).
RUNTIME_BYTES = 2128 << 20

THREADS_BIND = "VLLM_CPU_OMP_THREADS_BIND"
# Any of these says how many threads or which cores: then nothing is set.
_THREAD_VARIABLES = (THREADS_BIND, "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_CPU_SIM_MULTI_NUMA")
_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_DTYPE_BYTES = {"float32": 4}


@dataclass(frozen=True)
class ModelShape:
    """What the defaults need to know of a model. ``kv_bytes_per_token`` counts all layers."""

    name: str
    context_tokens: int
    kv_bytes_per_token: int
    weight_bytes: int
    mapped_bytes: int

    @classmethod
    def read(cls, folder: PackedFolder) -> ModelShape:
        config = folder.text_config
        heads = int(config.get("num_attention_heads") or 1)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
        layers = int(config.get("num_hidden_layers") or 0)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
        return cls(
            name=str(folder.path),
            context_tokens=int(config.get("max_position_embeddings") or 0),
            kv_bytes_per_token=2 * layers * kv_heads * head_dim * _DTYPE_BYTES.get(dtype, 2),
            weight_bytes=folder.plain_bytes,
            mapped_bytes=folder.packed_bytes,
        )


@dataclass(frozen=True)
class EngineDefaults:
    """Values for what the user left open (by vLLM's argument names), and one sentence for the log."""

    arguments: dict[str, int]
    sentence: str


def engine_defaults(
    model: ModelShape | None, machine: Machine, given: Mapping[str, int | None]
) -> EngineDefaults:
    """Choose what ``given`` leaves open. ``given`` holds the user's arguments by name; a value of ``None``
    means "given, number not known". Raises :class:`OmniError` with the numbers when the model does not fit
    the memory."""
    seqs = given.get("max_num_seqs") or MAX_NUM_SEQS
    chosen: dict[str, int] = {}
    if "max_num_seqs" not in given:
        chosen["max_num_seqs"] = seqs
    if "max_num_batched_tokens" not in given:
        # vLLM refuses fewer tokens per step than requests.
        chosen["max_num_batched_tokens"] = max(MAX_NUM_BATCHED_TOKENS, seqs)
    kv_given = "kv_cache_memory_bytes" in given or "gpu_memory_utilization" in given
    if model is None or not model.kv_bytes_per_token or not model.context_tokens:
        if not kv_given:
            chosen["kv_cache_memory_bytes"] = min(KV_BYTES_OF_AN_UNKNOWN_MODEL, machine.available_bytes // 4)
        if "max_model_len" not in given:
            # vLLM's "auto": the longest context that the KV cache holds, at most the model's.
            chosen["max_model_len"] = -1
        return EngineDefaults(chosen, _sentence(chosen))
    context = given.get("max_model_len") or min(model.context_tokens, CONTEXT_TOKENS)
    kv_bytes = given.get("kv_cache_memory_bytes")
    if not kv_given:
        kv_bytes, context = _fit(model, machine, context, "max_model_len" in given)
        chosen["kv_cache_memory_bytes"] = kv_bytes
    elif kv_bytes is not None and "max_model_len" not in given:
        blocks = kv_bytes // model.kv_bytes_per_token // BLOCK_TOKENS - SPARE_BLOCKS
        if blocks < 1:
            least = (1 + SPARE_BLOCKS) * BLOCK_TOKENS * model.kv_bytes_per_token
            raise OmniError(
                f"a KV cache of {kv_bytes} bytes is too small for {model.name}: {least} bytes are the least"
            )
        context = min(context, blocks * BLOCK_TOKENS)
    if "max_model_len" not in given:
        chosen["max_model_len"] = context
    _refuse_too_big(model, machine, kv_bytes or 0)
    return EngineDefaults(chosen, _sentence(chosen))


def kv_bytes_of(model: ModelShape, tokens: int) -> int:
    """Bytes of a KV cache for ``tokens``, in whole blocks, with the blocks that vLLM takes for itself."""
    return (-(-tokens // BLOCK_TOKENS) + SPARE_BLOCKS) * BLOCK_TOKENS * model.kv_bytes_per_token


def _fit(model: ModelShape, machine: Machine, context: int, context_is_given: bool) -> tuple[int, int]:
    """KV bytes and context within the memory that the weights leave: fewer contexts first, then shorter."""
    left = machine.available_bytes - _needed(model, 0)
    for contexts in range(KV_CONTEXTS, 0, -1):
        kv_bytes = kv_bytes_of(model, contexts * context)
        if kv_bytes <= left:
            return kv_bytes, context
    while not context_is_given and context > MIN_CONTEXT_TOKENS and kv_bytes_of(model, context) > left:
        context = max(MIN_CONTEXT_TOKENS, context // 2)
    return kv_bytes_of(model, context), context


def _needed(model: ModelShape, kv_bytes: int) -> int:
    return model.weight_bytes + model.mapped_bytes + kv_bytes + RUNTIME_BYTES


def _refuse_too_big(model: ModelShape, machine: Machine, kv_bytes: int) -> None:
    needed = _needed(model, kv_bytes)
    if needed > machine.available_bytes:
        weights = model.weight_bytes + model.mapped_bytes
        raise OmniError(
            f"{model.name} is too big for the memory: weights {_gib(weights)}, KV cache {_gib(kv_bytes)} and "
            f"vLLM {_gib(RUNTIME_BYTES)} need {_gib(needed)}, but {_gib(machine.available_bytes)} are "
            f"{machine.available_reason}"
        )


def _sentence(chosen: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in chosen.items()) or "nothing"


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def prepare_environment(machine: Machine | None = None) -> str:
    """Set, for vLLM's processes, what the user left open; one sentence for the log. Must run before vLLM is
    imported."""
    users = settings.given(*_THREAD_VARIABLES)
    if users:
        return "threads as set by " + ", ".join(f"{name}={value}" for name, value in users.items())
    machine = machine or Machine.read()
    os.environ[THREADS_BIND] = machine.core_list
    return f"{len(machine.cores)} threads on cores {machine.core_list} ({machine.cores_reason})"


def engine_arguments(model: Path, given: Mapping[str, int | None] | None = None) -> dict[str, Any]:
    """Bounded arguments for vLLM's ``EngineArgs`` and a local model folder.

    Raises :class:`OmniError` (a ``FormatError`` for a damaged folder) with one line."""
    folder = read_packed_folder(model)
    return dict(
        engine_defaults(ModelShape.read(folder), Machine.read(), with_environment(given or {})).arguments
    )


def with_environment(given: Mapping[str, int | None]) -> dict[str, int | None]:
    """``given`` and what the user's environment says: vLLM takes its KV cache size from there first."""
    space = settings.given(_KV_SPACE).get(_KV_SPACE)
    if space is None:
        return dict(given)
    return {**given, "kv_cache_memory_bytes": int(space) << 30 if space.isdigit() else None}


def local_folder(model: str) -> PackedFolder | None:
    """The model's folder, where it is a local one with readable weights; ``None`` for a name on a model
    hub."""
    path = Path(model).expanduser()
    return read_packed_folder(path) if path.is_dir() else None
