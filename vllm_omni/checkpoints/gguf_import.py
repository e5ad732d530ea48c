"""GGUF file → model folder for vLLM: weights packed without loss, config and tokenizer from the metadata."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import vllm_omni
from vllm_omni import int4
from vllm_omni.checkpoints.atomic_folder import new_folder, refuse_existing, warn_of_abandoned
from vllm_omni.checkpoints.gguf_config import architecture_of, generation_config, model_config
from vllm_omni.checkpoints.gguf_names import ModuleTensors, model_tensors
from vllm_omni.checkpoints.gguf_source import GgufSource, GgufTensor
from vllm_omni.checkpoints.gguf_tokenizer import TokenizerFiles, tokenizer_files
from vllm_omni.checkpoints.import_record import RECORD_VERSION, ImportRecord, file_sha256, folder_files
from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec, header_bytes
from vllm_omni.errors import FormatError, OmniError
from vllm_omni.formats.ggml import BLOCK_COLUMNS, BLOCK_TYPES
from vllm_omni.layout import Segment
from vllm_omni.layout_header import LAYOUT_VERSION, PACKED_SUFFIX

PACKED_FILE = "model-00001-of-00002.safetensors"
FLOAT_FILE = "model-00002-of-00002.safetensors"
INDEX_FILE = "model.safetensors.index.json"

Progress = Callable[[int, int], None]
"""Called with ``(bytes done, bytes in all)`` of reading and writing together."""

# Room for the small files beside the weights, over what is known of them.
_SPARE_BYTES = 1 << 20


@dataclass(frozen=True)
class TensorPlan:
    """A tensor of the source and the one it becomes; ``interleaved_heads`` as in ``ModuleTensors``."""

    spec: TensorSpec
    tensor: GgufTensor
    interleaved_heads: int


@dataclass(frozen=True)
class ImportPlan:
    """All that will be written, decided before anything is."""

    source: GgufSource
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer: TokenizerFiles
    packed: tuple[TensorPlan, ...]
    floats: tuple[TensorPlan, ...]
    ignore: tuple[str, ...]

    @property
    def weight_bytes(self) -> int:
        """Exact length of both weight files together."""
        total = 0
        for plans in (self.packed, self.floats):
            specs = [plan.spec for plan in plans]
            total += len(header_bytes(specs)) + sum(spec.nbytes for spec in specs)
        return total


@dataclass(frozen=True)
class ImportSummary:
    """What an import did. ``tensor_types`` counts the tensors of the source by GGUF type."""

    folder: Path
    tensors: int
    tensor_types: dict[str, int]
    source_bytes: int
    folder_bytes: int
    packed_bytes: int
    seconds: float


def import_gguf(source_path: Path, target: Path, progress: Progress | None = None) -> ImportSummary:
    """Import ``source_path`` into the new folder ``target``.

    Raises ``FormatError`` for a source that cannot be imported whole (named: tensor, key or type) and
    ``OmniError`` for a target that exists or cannot be written, a full disk included. In every case,
    interruption too, nothing is left behind.
    """
    started = time.monotonic()
    refuse_existing(target)
    warn_of_abandoned(target)
    plan = plan_import(GgufSource(source_path))
    _require_space(plan, target)
    try:
        with new_folder(target) as folder, _one_thread():
            packed_bytes = _write_folder(plan, folder, progress)
    except FormatError as error:
        raise FormatError(f"{source_path}: {error}") from error
    except OSError as error:
        raise _write_error(plan, target, error) from error
    files = folder_files(target)
    return ImportSummary(
        folder=target,
        tensors=len(plan.source.tensors),
        tensor_types=dict(Counter(t.type_name for t in plan.source.tensors.values())),
        source_bytes=plan.source.size_bytes,
        folder_bytes=sum(files.values()),
        packed_bytes=packed_bytes,
        seconds=time.monotonic() - started,
    )


def plan_import(source: GgufSource) -> ImportPlan:
    """Decide everything about an import; reads metadata and float tensors, writes nothing."""
    architecture = architecture_of(source)
    config = model_config(source, architecture)
    modules = model_tensors(source, architecture, config)
    tokenizer = tokenizer_files(
        source, vocab_size=config["vocab_size"], max_length=config["max_position_embeddings"]
    )
    packed = tuple(_packed_plan(m) for m in modules if m.weight.packed)
    if not packed:
        raise FormatError(f"{source.path}: no quantized tensor: expected Q4_0, Q4_1 or Q8_0 among them")
    return ImportPlan(
        source=source,
        config=config,
        generation_config=generation_config(source),
        tokenizer=tokenizer,
        packed=packed,
        floats=_float_plans(modules),
        ignore=_ignored(modules, config),
    )


def undo_interleave(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of q or k in the model's order: within each head, even rows first, then odd ones.

    ``rows`` is ``[heads × head size, …]``, of values or of raw quantized bytes: whole rows move, so nothing
    is lost.
    """
    paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.array(paired.swapaxes(1, 2), order="C").reshape(rows.shape)


def pack_tensor(tensor: GgufTensor, interleaved_heads: int) -> int4.PackedWeight:
    """The packed form of a quantized tensor, exact. ``interleaved_heads`` as in ``ModuleTensors``."""
    n, k = tensor.shape
    # A copy even where no row moves: torch takes no read-only buffer, and the mapping is one.
    raw = undo_interleave(tensor.raw, interleaved_heads) if interleaved_heads else np.array(tensor.raw)
    try:
        return int4.from_gguf(torch.from_numpy(raw), ggml_type=tensor.type_name, shape=(n, k))
    except FormatError as error:
        raise FormatError(f"tensor {tensor.name!r} of type {tensor.type_name}: {error}") from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Packing is bound by memory and the tensors are small: on a busy machine a team only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _packed_plan(module: ModuleTensors) -> TensorPlan:
    n, k = module.weight.shape
    block = BLOCK_TYPES[module.weight.type_name]
    segment = Segment(
        n=n,
        k=k,
        bits=block.bits,
        group_size=BLOCK_COLUMNS,
        scale_type="f16",
        zero_kind="offset" if block.has_offset else "none",
        permuted=False,
    )
    spec = TensorSpec(module.module + PACKED_SUFFIX, "U8", (segment.nbytes,))
    return TensorPlan(spec, module.weight, module.interleaved_heads)


def _float_plans(modules: Sequence[ModuleTensors]) -> tuple[TensorPlan, ...]:
    plans = []
    for module in modules:
        for suffix, tensor in (("weight", module.weight), ("bias", module.bias)):
            if tensor is None or tensor.packed:
                continue
            spec = TensorSpec(f"{module.module}.{suffix}", _exact_dtype(tensor), tensor.shape)
            plans.append(TensorPlan(spec, tensor, module.interleaved_heads))
    # Widest elements first, so that every tensor stays aligned to its own element.
    return tuple(sorted(plans, key=lambda plan: plan.spec.dtype != "F32"))


def _exact_dtype(tensor: GgufTensor) -> str:
    """``BF16`` where every value is exact in it, else the type as stored."""
    if tensor.type_name == "BF16":
        return "BF16"
    bits = tensor.floats().view(np.uint32)
    return tensor.type_name if np.any(bits & 0xFFFF) else "BF16"


def _ignored(modules: Sequence[ModuleTensors], config: dict[str, Any]) -> tuple[str, ...]:
    """Modules whose weight is not packed although vLLM would quantize their kind."""
    names = [m.module for m in modules if len(m.weight.shape) == 2 and not m.weight.packed]
    if config["tie_word_embeddings"] and "model.embed_tokens" in names:
        names.append("lm_head")
    return tuple(names)


def _require_space(plan: ImportPlan, target: Path) -> None:
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError as error:
        raise OmniError(f"{target}: no folder {target.parent}: {error.strerror}") from error
    needed = _needed_bytes(plan)
    if free < needed:
        raise OmniError(f"{target}: not enough disk space: needs {needed:,} bytes, {free:,} are free")


def _needed_bytes(plan: ImportPlan) -> int:
    return plan.weight_bytes + plan.tokenizer.nbytes + _SPARE_BYTES


def _write_error(plan: ImportPlan, target: Path, error: OSError) -> OmniError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OmniError(
            f"{target}: the disk is full: needs {_needed_bytes(plan):,} bytes; nothing was written"
        )
    return OmniError(f"{target}: cannot be written: {error.strerror or error}")


def _write_folder(plan: ImportPlan, folder: Path, progress: Progress | None) -> int:
    """Fill ``folder``; the number of bytes of the packed file."""
    total = plan.source.size_bytes + plan.weight_bytes
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(min(done, total), total)

    source_sha256 = file_sha256(plan.source.path, advance)
    with SafetensorsWriter(folder / PACKED_FILE, [p.spec for p in plan.packed], aligned=True) as packed_file:
        for item in plan.packed:
            packed_file.write(
                item.spec.name, pack_tensor(item.tensor, item.interleaved_heads).data.numpy().data
            )
            advance(item.spec.nbytes)
    with SafetensorsWriter(folder / FLOAT_FILE, [p.spec for p in plan.floats]) as float_file:
        for item in plan.floats:
            float_file.write(item.spec.name, _float_bytes(item).data)
            advance(item.spec.nbytes)
    _write_json(folder / INDEX_FILE, _index(plan))
    plan.tokenizer.write(folder)
    _write_json(folder / "generation_config.json", plan.generation_config)
    _write_json(
        folder / "config.json", plan.config | {"quantization_config": _quantization(plan, packed_file.sha256)}
    )
    ImportRecord(
        record_version=RECORD_VERSION,
        source_name=plan.source.path.name,
        source_bytes=plan.source.size_bytes,
        source_sha256=source_sha256,
        layout_version=LAYOUT_VERSION,
        weights_sha256=packed_file.sha256,
        versions={"vllm-omni-edge": vllm_omni.__version__, "gguf": importlib.metadata.version("gguf")},
        files=folder_files(folder),
    ).write(folder)
    if progress is not None:
        progress(total, total)
    return (folder / PACKED_FILE).stat().st_size


def _float_bytes(plan: TensorPlan) -> npt.NDArray[np.uint8]:
    values = plan.tensor.floats()
    if plan.interleaved_heads:
        values = undo_interleave(values, plan.interleaved_heads)
    values = np.ascontiguousarray(values)
    if plan.spec.dtype == "BF16":
        # Exact by _exact_dtype: the lower half of every float32 is zero.
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif plan.spec.dtype == "F16":
        values = values.astype(np.float16)
    return values.reshape(-1).view(np.uint8)


def _quantization(plan: ImportPlan, weights_sha256: str) -> dict[str, Any]:
    return {
        "quant_method": "cpu_int4",
        "layout_version": LAYOUT_VERSION,
        "weights_digest": weights_sha256,
        "activation": "native",
        "ignore": list(plan.ignore),
    }


def _index(plan: ImportPlan) -> dict[str, Any]:
    weight_map = {p.spec.name: PACKED_FILE for p in plan.packed} | {
        p.spec.name: FLOAT_FILE for p in plan.floats
    }
    total = sum(p.spec.nbytes for p in (*plan.packed, *plan.floats))
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
