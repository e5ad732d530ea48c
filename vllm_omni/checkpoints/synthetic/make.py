"""Make a synthetic checkpoint: a new folder, complete or not there, written tensor by tensor."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import vllm_omni
from vllm_omni.checkpoints.atomic_folder import new_folder, refuse_existing, warn_of_abandoned
from vllm_omni.checkpoints.import_record import folder_files
from vllm_omni.checkpoints.synthetic import gguf_file, safetensors_folder
from vllm_omni.checkpoints.synthetic.geometries import Geometry, Tensor
from vllm_omni.checkpoints.synthetic.recipe import Recipe
from vllm_omni.checkpoints.synthetic.tokenizer import tokenizer_files
from vllm_omni.errors import OmniError

RECORD_NAME = "omni_synthetic.json"
RECORD_VERSION = 1

Progress = Callable[[int, int], None]
"""Called with ``(bytes written, bytes in all)``."""

# Room for the small files beside the weights.
_SPARE_BYTES = 32 << 20


@dataclass(frozen=True)
class MakeSummary:
    """What was made. ``weights_sha256`` is of the original weights: the same in every format."""

    folder: Path
    parameters: int
    folder_bytes: int
    weights_sha256: str
    note: str
    seconds: float


def make_model(recipe: Recipe, target: Path, progress: Progress | None = None) -> MakeSummary:
    """Make the new folder ``target``.

    Raises ``OmniError`` for a target that exists or cannot be written, a full disk included. In every case,
    interruption too, nothing is left behind.
    """
    started = time.monotonic()
    refuse_existing(target)
    warn_of_abandoned(target)
    is_gguf = recipe.format == "gguf-f16"
    tensors = gguf_file.plan(recipe.geometry) if is_gguf else []
    files = [] if is_gguf else safetensors_folder.weight_files(recipe)
    total = sum(item.nbytes for item in tensors) + sum(file.nbytes for file in files)
    _require_space(target, total)
    originals = _OriginalWeights(_stored_bytes(recipe, files, tensors), total, progress)
    try:
        with new_folder(target) as folder, _one_thread():
            if is_gguf:
                gguf_file.write(recipe, tensors, folder, originals.add)
            else:
                safetensors_folder.write(recipe, files, folder, originals.add)
                tokenizer_files(recipe.geometry.vocab, recipe.geometry.context).write(folder)
            _write_record(recipe, folder, originals.sha256)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OmniError(
                f"{target}: the disk is full: needs {total:,} bytes; nothing was written"
            ) from error
        raise OmniError(f"{target}: cannot be written: {error.strerror or error}") from error
    return MakeSummary(
        folder=target,
        parameters=recipe.geometry.parameters,
        folder_bytes=sum(folder_files(target).values()),
        weights_sha256=originals.sha256,
        note=served_note(recipe.geometry),
        seconds=time.monotonic() - started,
    )


def served_note(geometry: Geometry) -> str:
    """Why this product cannot serve the model; empty where it can."""
    if geometry.family == "spark2_5":
        return "vLLM has no Spark2_5ForCausalLM, and this release adds none: the folder cannot be served yet"
    return ""


class _OriginalWeights:
    """Digest of the original weights, whatever their order, and the progress of writing them."""

    def __init__(self, stored: Callable[[Tensor], int], total: int, progress: Progress | None) -> None:
        self._digests: dict[str, str] = {}
        self._stored = stored
        self._total = total
        self._progress = progress
        self._done = 0

    def add(self, tensor: Tensor, original: torch.Tensor) -> None:
        self._digests[tensor.name] = hashlib.sha256(original.view(torch.uint8).numpy().data).hexdigest()
        self._done += self._stored(tensor)
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    @property
    def sha256(self) -> str:
        lines = "".join(f"{name} {digest}\n" for name, digest in sorted(self._digests.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def _stored_bytes(
    recipe: Recipe,
    files: list[safetensors_folder.WeightFile],
    planned: list[gguf_file.GgufTensorPlan],
) -> Callable[[Tensor], int]:
    sizes = {item.tensor.name: item.nbytes for item in planned}
    for file in files:
        for item in file.stored:
            sizes[item.tensor.name] = sum(spec.nbytes for spec in item.specs)
    return lambda tensor: sizes[tensor.name]


def _write_record(recipe: Recipe, folder: Path, weights_sha256: str) -> None:
    record: dict[str, Any] = {
        "record_version": RECORD_VERSION,
        "weights": "random",
        "geometry": asdict(recipe.geometry),
        "parameters": recipe.geometry.parameters,
        "format": recipe.format,
        "seed": recipe.seed,
        "group_size": recipe.group_size or None,
        "head_bits": recipe.head_bits or None,
        "quantized_weights": recipe.quantized,
        "original_weights_sha256": weights_sha256,
        "served": not served_note(recipe.geometry),
        "note": served_note(recipe.geometry) or None,
        "versions": {
            "vllm-omni-edge": vllm_omni.__version__,
            **{name: importlib.metadata.version(name) for name in ("gguf", "numpy", "tokenizers", "torch")},
        },
        "files": folder_files(folder),
    }
    (folder / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _require_space(target: Path, weight_bytes: int) -> None:
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError as error:
        raise OmniError(f"{target}: no folder {target.parent}: {error.strerror}") from error
    needed = weight_bytes + _SPARE_BYTES
    if free < needed:
        raise OmniError(f"{target}: not enough disk space: needs {needed:,} bytes, {free:,} are free")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Rounding to codes is bound by memory: a team of threads only waits for itself."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
