"""Validation of a file of packed tensors: structure, layout version, checksums. A fault names its tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from vllm_omni import int4
from vllm_omni.checkpoints.safetensors_file import ALIGNMENT_BYTES, TensorEntry, read_header
from vllm_omni.errors import FormatError
from vllm_omni.layout_header import PACKED_SUFFIX


@dataclass(frozen=True)
class PackedEntry:
    """A packed tensor of a file and what its own header says."""

    entry: TensorEntry
    n: int
    k: int
    bits: int
    group_size: int


def packed_tensors(path: Path) -> Iterator[tuple[TensorEntry, torch.Tensor]]:
    """``(entry, bytes)`` of each packed tensor, mapped. ``FormatError`` for a damaged or misaligned file."""
    header = read_header(path)
    # A private mapping: pages are read on demand and shared with every other process that maps the file.
    data = torch.from_file(str(path), shared=False, size=header.file_bytes, dtype=torch.uint8)
    for entry in header.entries:
        if not entry.name.endswith(PACKED_SUFFIX):
            continue
        if entry.dtype != "U8" or len(entry.shape) != 1:
            raise FormatError(
                f"{path}: tensor {entry.name!r} is {entry.dtype} {list(entry.shape)}: expected one row of U8"
            )
        if entry.start % ALIGNMENT_BYTES:
            raise FormatError(
                f"{path}: tensor {entry.name!r} begins at byte {entry.start}: "
                f"expected a multiple of {ALIGNMENT_BYTES}"
            )
        yield entry, data[entry.start : entry.end]


def validate_packed_file(path: Path, *, verify: bool = True) -> list[PackedEntry]:
    """Check every packed tensor of a file; ``verify`` also compares the checksums, which reads all of it.

    Raises ``FormatError`` naming file and tensor: truncated, of a newer layout version, or with a byte
    changed.
    """
    found = []
    for entry, data in packed_tensors(path):
        try:
            weight = int4.PackedWeight(data)
            weight.validate(verify=verify)
        except FormatError as error:
            raise FormatError(f"{path}: tensor {entry.name!r}: {error}") from error
        found.append(PackedEntry(entry, *weight.shape, weight.bits, weight.group_size))
    return found
