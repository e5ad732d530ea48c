"""What a GGUF file holds, for arms whose engine reads one: types, head, bytes that a token reads.

Read by the harness, not by the measured process: listing a vocabulary costs memory that is not the engine's.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.provenance.model import model_identity
from vllm_omni.errors import OmniError

_TABLE, _HEAD = "token_embd.weight", "output.weight"
_BLOCK = re.compile(r"^blk\.(\d+)\.")


def bits_of(type_name: str) -> int:
    """Nominal bits of a weight of ggml type ``type_name``: the number in its name."""
    match = re.search(r"\d+", type_name)
    if match is None:
        raise ValueError(f"ggml type {type_name}: expected a number of bits in its name")
    return int(match[0])


def gguf_facts(file: Path) -> dict[str, Any]:
    """``model``, ``ran``, ``file_tensor_types`` and ``weight_bytes_per_token`` of ``file``: what is stored,
    which the engine may rearrange. Raises :class:`OmniError` where it is no GGUF file."""
    return _read(file).facts


def matrix_names(file: Path) -> dict[str, Any]:
    """Names of the matrices that a token is multiplied with, as ``patterns`` (``#`` for the number of a
    block) and ``blocks``."""
    return _read(file).names


def layer_type(file: Path) -> str:
    """The type of most weights of the layers."""
    return _read(file).layer_type


@dataclass(frozen=True)
class _File:
    facts: dict[str, Any]
    names: dict[str, Any]
    layer_type: str


def _read(file: Path) -> _File:
    try:
        status = file.stat()
    except OSError as error:
        raise OmniError(f"{file}: expected a GGUF file: {error.strerror}") from error
    return _facts(file, status.st_size, status.st_mtime_ns)


@cache
def _facts(file: Path, size: int, mtime_ns: int) -> _File:
    from gguf import GGUFReader

    try:
        tensors = GGUFReader(file).tensors
    except (ValueError, OSError, IndexError) as error:
        raise OmniError(f"{file}: expected a GGUF file: {error}") from error
    matrices = {tensor.name: tensor for tensor in tensors if len(tensor.shape) >= 2}
    head = matrices.get(_HEAD) or matrices.get(_TABLE)
    if head is None:
        raise OmniError(f"{file}: expected {_HEAD} or {_TABLE}, found neither")
    layers = {name: tensor for name, tensor in matrices.items() if name not in (_HEAD, _TABLE)}
    elements: Counter[str] = Counter()
    for tensor in layers.values():
        elements[tensor.tensor_type.name] += int(tensor.n_elements)
    head_type = head.tensor_type.name
    types = Counter(tensor.tensor_type.name for tensor in layers.values())
    types[head_type] += 1
    most = elements.most_common(1)[0][0]
    identity = model_identity(file).model_dump()
    facts: dict[str, Any] = {
        "model": identity | {"quantization": _summary(elements), "head_bits": bits_of(head_type)},
        "ran": {
            "weight_bits": bits_of(most),
            "head_bits": bits_of(head_type),
            # Where the bits come from: the engines tell none.
            "source": "file",
        },
        "file_tensor_types": dict(types),
        "quantization": _summary(elements),
    }
    if all(len(tensor.shape) == 2 for tensor in matrices.values()):
        # Experts lie in tensors of three dimensions, and a token reads some of them: no figure then.
        read = sum(int(tensor.n_bytes) for tensor in layers.values())
        facts["weight_bytes_per_token"] = read + int(head.n_bytes)
    numbers = [int(match[1]) for name in layers if (match := _BLOCK.match(name))]
    patterns = sorted({_BLOCK.sub("blk.#.", name) for name in layers})
    names = {"patterns": [*patterns, head.name], "blocks": max(numbers, default=-1) + 1}
    return _File(facts, names, most)


def _summary(elements: Counter[str]) -> str:
    """Types of the layers' matrices, the commonest first: ``Q4_K 80 %, Q6_K 20 %``."""
    total = elements.total()
    if len(elements) == 1:
        return next(iter(elements))
    return ", ".join(f"{name} {count / total:.0%}" for name, count in elements.most_common())
