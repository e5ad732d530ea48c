"""Which weights: digests of what is inside, and no path."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.artifact.schema import ModelIdentity
from vllm_omni.errors import OmniError
from vllm_omni.quantization.packed_folder import PackedFolder, read_packed_folder

_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.onnx", "*.onnx.data")
_HEADS = ("lm_head", "model.embed_tokens")


def model_identity(path: Path) -> ModelIdentity:
    """Identity of a model folder or of a GGUF file. Raises :class:`OmniError` when there is none."""
    path = path.expanduser()
    if path.is_file():
        return ModelIdentity(
            id=path.name,
            config_sha256=None,
            weights_sha256=file_sha256(path),
            weights_bytes=path.stat().st_size,
            quantization=path.stem.rpartition(".")[2] if path.suffix == ".gguf" else None,
            head_bits=None,
        )
    files = sorted(file for pattern in _WEIGHTS for file in path.glob(pattern))
    if not files:
        raise OmniError(f"{path}: expected a model folder or file, found no weights")
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.name} {file_sha256(file)}\n".encode())
    config = path / "config.json"
    folder = read_packed_folder(path) if config.is_file() else None
    return ModelIdentity(
        id=path.resolve().name,
        config_sha256=file_sha256(config) if config.is_file() else None,
        weights_sha256=whole.hexdigest(),
        weights_bytes=sum(file.stat().st_size for file in files),
        quantization=_quantization(folder) if folder else None,
        head_bits=_head_bits(folder) if folder else None,
    )


def file_sha256(path: Path) -> str:
    """Digest of a file; the same unchanged file is read once per process."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _quantization(folder: PackedFolder) -> str | None:
    found: dict[str, Any] | None = folder.quantization
    if not found:
        return None
    parts = [str(found.get("quant_method", "unnamed"))]
    parts += [f"{key}={found[key]}" for key in ("bits", "group_size", "activation", "format") if key in found]
    return " ".join(parts)


def _head_bits(folder: PackedFolder) -> int | None:
    """Bits of the tensor that the logits are computed from: a tied head is the table."""
    for module in _HEADS:
        if module in folder.packed:
            return max(folder.packed[module].bits)
        if f"{module}.weight" in folder.plain:
            dtype = str(folder.text_config.get("dtype") or folder.text_config.get("torch_dtype") or "")
            return {"bfloat16": 16, "float16": 16, "float32": 32}.get(dtype)
    return None
