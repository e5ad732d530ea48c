"""safetensors files whose tensors can be mapped and used in place.

Layout of the format: ``u64 header length | JSON header | data``. The official writer leaves the data wherever
the JSON happens to end; this one pads the JSON with spaces so that the data begins on a 64-byte boundary, and
asks that the length of every packed tensor is a multiple of 64, so that each of them begins on one too.
Padding with spaces is part of the format: any safetensors reader opens these files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from vllm_omni.errors import FormatError

ALIGNMENT_BYTES = 64
# The limit of the safetensors library: a longer header is not opened by it.
MAX_HEADER_BYTES = 100_000_000

# Bits rather than bytes, because the format has types below one byte.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written: safetensors dtype name and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file; ``start`` and ``end`` are byte offsets from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class SafetensorsHeader:
    """What a file says it holds, checked against its length. Entries are in file order."""

    path: Path
    entries: tuple[TensorEntry, ...]
    metadata: dict[str, str]
    data_start: int
    file_bytes: int


def header_bytes(tensors: Sequence[TensorSpec], metadata: dict[str, str] | None = None) -> bytes:
    """The length field and the padded JSON header: the data that follows begins on a 64-byte boundary."""
    table: dict[str, object] = {"__metadata__": dict(metadata or {"format": "pt"})}
    offset = 0
    for spec in tensors:
        if spec.name in table:
            raise ValueError(f"tensor {spec.name!r} is declared twice")
        end = offset + spec.nbytes
        table[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


class SafetensorsWriter:
    """Writes one file, tensor by tensor, in the declared order; it gets its name only when complete.

    Used as a context manager. Leaving it normally checks that every tensor was written, flushes the file to
    the disk and renames it; leaving it by an exception removes the partial file. ``aligned`` asks that every
    tensor's length be a multiple of 64 bytes. After a normal exit ``sha256`` is the digest of the whole file.
    """

    def __init__(
        self,
        path: Path,
        tensors: Sequence[TensorSpec],
        *,
        metadata: dict[str, str] | None = None,
        aligned: bool = False,
    ) -> None:
        for spec in tensors:
            if aligned and spec.nbytes % ALIGNMENT_BYTES:
                raise ValueError(
                    f"tensor {spec.name!r} has {spec.nbytes} bytes: "
                    f"expected a multiple of {ALIGNMENT_BYTES}, so that the next one stays aligned"
                )
        self.path = path
        self.sha256 = ""
        self._partial = path.with_name(path.name + ".partial")
        self._pending = list(reversed(tensors))
        self._digest = hashlib.sha256()
        self._header = header_bytes(tensors, metadata)
        self._file: BinaryIO | None = None

    def __enter__(self) -> SafetensorsWriter:
        self._file = open(self._partial, "xb")
        self._put(self._header)
        return self

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Append the bytes of the next declared tensor. ``data`` is any C-contiguous buffer.

        Raises ``ValueError`` for another tensor than the next one, or for another length than declared.
        """
        if not self._pending or self._pending[-1].name != name:
            expected = repr(self._pending[-1].name) if self._pending else "no more tensors"
            raise ValueError(f"{self.path.name}: tensor {name!r} came, expected {expected}")
        spec = self._pending[-1]
        view = memoryview(data).cast("B")
        if view.nbytes != spec.nbytes:
            raise ValueError(f"tensor {name!r}: {view.nbytes} bytes came, expected {spec.nbytes}")
        self._put(view)
        self._pending.pop()

    def _put(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.write(data)
        self._digest.update(data)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        try:
            if kind is None:
                if self._pending:
                    raise ValueError(f"{self.path.name}: tensor {self._pending[-1].name!r} was never written")
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                os.rename(self._partial, self.path)
                self.sha256 = self._digest.hexdigest()
        finally:
            # After the rename there is nothing under this name; before it, what is there is incomplete.
            try:
                self._file.close()
            finally:
                self._partial.unlink(missing_ok=True)


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check a file's header.

    Raises ``FormatError`` naming the file, and the tensor where one is concerned, when the header is not
    valid or does not agree with the length of the file.
    """
    try:
        with open(path, "rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length_field = file.read(8)
            if len(length_field) < 8:
                raise FormatError(
                    f"{path}: truncated: expected an 8-byte header length, found {file_bytes} bytes"
                )
            length = int.from_bytes(length_field, "little")
            if length > MAX_HEADER_BYTES:
                raise FormatError(
                    f"{path}: not a safetensors file: header length {length}, "
                    f"expected at most {MAX_HEADER_BYTES}"
                )
            if 8 + length > file_bytes:
                raise FormatError(
                    f"{path}: truncated: the header ends at byte {8 + length}, "
                    f"the file has {file_bytes} bytes"
                )
            text = file.read(length)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    data_start = 8 + length
    entries, metadata = _parse_table(path, text, data_start)
    _check_extents(path, entries, data_start, file_bytes)
    return SafetensorsHeader(path, tuple(entries), metadata, data_start, file_bytes)


def _parse_table(path: Path, text: bytes, data_start: int) -> tuple[list[TensorEntry], dict[str, str]]:
    try:
        table = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{path}: not a safetensors file: the header is not JSON ({error})") from error
    if not isinstance(table, dict):
        raise FormatError(f"{path}: not a safetensors file: the header is not a JSON object")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise FormatError(f"{path}: __metadata__ is not a JSON object")
    return sorted(_parse_entries(path, table, data_start), key=lambda e: (e.start, e.end)), metadata


def _parse_entries(path: Path, table: dict[str, Any], data_start: int) -> Iterable[TensorEntry]:
    for name, fields in table.items():
        try:
            dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
            well_formed = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            well_formed = False
        if not well_formed:
            raise FormatError(
                f"{path}: tensor {name!r}: expected dtype, shape and two data_offsets, found {fields!r}"
            )
        if dtype not in DTYPE_BITS:
            raise FormatError(f"{path}: tensor {name!r}: unknown dtype {dtype!r}")
        bits = prod(shape) * DTYPE_BITS[dtype]
        if bits != 8 * (end - begin):
            raise FormatError(
                f"{path}: tensor {name!r}: {dtype} {list(shape)} needs {bits // 8} bytes, "
                f"its offsets hold {end - begin}"
            )
        yield TensorEntry(name, dtype, shape, data_start + begin, data_start + end)


def _check_extents(path: Path, entries: Sequence[TensorEntry], data_start: int, file_bytes: int) -> None:
    position = data_start
    for entry in entries:
        if entry.start != position:
            raise FormatError(
                f"{path}: tensor {entry.name!r} begins at byte {entry.start}, "
                f"expected {position}, where the one before it ends"
            )
        if entry.end > file_bytes:
            raise FormatError(
                f"{path}: truncated: tensor {entry.name!r} at byte {entry.start} needs {entry.nbytes} bytes, "
                f"the file has {max(file_bytes - entry.start, 0)} of them"
            )
        position = entry.end
    if position != file_bytes:
        raise FormatError(f"{path}: expected {position} bytes, found {file_bytes}")
