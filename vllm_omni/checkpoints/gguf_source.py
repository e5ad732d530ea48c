"""A GGUF file opened for import: what can be wrong with it is found here, before anything is written."""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian, GGUFValueType

from vllm_omni.errors import FormatError

PACKED_TYPES = ("Q4_0", "Q4_1", "Q8_0")
FLOAT_TYPES = ("F32", "F16", "BF16")
SUPPORTED_VERSIONS = (2, 3)

_MAGIC = b"GGUF"
_REQUIRED = object()


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file; ``raw`` maps the file and is read only.

    ``shape`` is outermost first, ``(N, K)`` for a matrix. ``raw`` is uint8: ``(N, bytes of a row)`` for a
    matrix, ``(bytes,)`` for a vector.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.raw.nbytes

    @property
    def packed(self) -> bool:
        return self.type_name in PACKED_TYPES

    def floats(self) -> npt.NDArray[np.float32]:
        """Values of an F32, F16 or BF16 tensor, exact, as float32."""
        if self.type_name == "F32":
            values = self.raw.view(np.float32)
        elif self.type_name == "F16":
            values = self.raw.view(np.float16).astype(np.float32)
        elif self.type_name == "BF16":
            values = (self.raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            raise ValueError(f"tensor {self.name!r} has type {self.type_name}: expected one of {FLOAT_TYPES}")
        return values.reshape(self.shape)


class _BoundedReader(gguf.GGUFReader):
    """The library's reader with bounds checks: it slices, so that a short file reads as short arrays.

    Arrays are read in one piece instead of element by element: a vocabulary has some 10⁵ strings.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(path)

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None
    ) -> npt.NDArray[Any]:
        self._require(int(offset) + np.dtype(dtype).itemsize * int(count))
        return super()._get(offset, dtype, count, override_order)

    def _require(self, end: int) -> None:
        if end > self.data.nbytes:
            raise FormatError(
                f"{self._path}: truncated: the header goes on to byte {end}, "
                f"the file has {self.data.nbytes} bytes"
            )

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
        kind, count, start = GGUFValueType(head[0][0]), int(head[1][0]), orig_offs + 12
        if kind == GGUFValueType.STRING:
            parts, end = self._string_array(start, count)
        elif kind in self.gguf_scalar_to_np:
            values = self._get(start, self.gguf_scalar_to_np[kind], count)
            parts, end = [values], start + values.nbytes
        else:
            raise ValueError(
                f"array of {kind.name} at byte {orig_offs}: expected an array of numbers or strings"
            )
        return end - orig_offs, head + parts, list(range(2, 2 + len(parts))), [GGUFValueType.ARRAY, kind]

    def _string_array(self, start: int, count: int) -> tuple[list[npt.NDArray[Any]], int]:
        plain = np.asarray(self.data)
        view = plain.data
        parts = []
        for _ in range(count):
            self._require(start + 8)
            end = start + 8 + int.from_bytes(view[start : start + 8], "little")
            self._require(end)
            parts.append(plain[start + 8 : end])
            start = end
        return parts, start

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        for field in fields:
            _, name_data, _, dims, raw_type, offset = field.parts
            name = bytes(name_data).decode("utf-8", "replace")
            check_tensor(
                self._path,
                name,
                tuple(int(n) for n in reversed(dims)),
                int(raw_type[0]),
                start_offs + int(offset[0]),
                self.data.nbytes,
            )
        super()._build_tensors(start_offs, fields)


def check_tensor(
    path: Path, name: str, shape: tuple[int, ...], type_id: int, start: int, file_bytes: int
) -> None:
    """Refuse a tensor of a type that is not imported, of an impossible shape, or not whole in the file."""
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise FormatError(
            f"{path}: tensor {name!r} has unknown type {type_id}; supported: {_supported_types()}"
        ) from None
    if kind.name not in PACKED_TYPES + FLOAT_TYPES:
        raise FormatError(f"{path}: tensor {name!r} has type {kind.name}; supported: {_supported_types()}")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    elements = 1
    for n in shape:
        elements *= n
    if not 1 <= len(shape) <= 2 or elements == 0:
        raise FormatError(
            f"{path}: tensor {name!r} has shape {list(shape)}: expected one or two dimensions, none of them 0"
        )
    if shape[-1] % block:
        raise FormatError(
            f"{path}: tensor {name!r} has rows of {shape[-1]}: "
            f"expected a multiple of {block}, the block of {kind.name}"
        )
    nbytes = elements // block * block_bytes
    if start + nbytes > file_bytes:
        raise FormatError(
            f"{path}: truncated: tensor {name!r} at byte {start} needs {nbytes} bytes, "
            f"the file has {max(file_bytes - start, 0)} of them"
        )


def _supported_types() -> str:
    return ", ".join(PACKED_TYPES + FLOAT_TYPES)


class GgufSource:
    """An open, checked GGUF file: ``path``, ``size_bytes``, ``architecture``, ``tensors`` by name, metadata.

    Raises ``FormatError``, naming the file and the tensor or key, for anything that keeps it from being
    imported whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = check_file(path)
        try:
            reader = _BoundedReader(path)
        except FormatError:
            raise
        except (ValueError, KeyError, IndexError, OverflowError, TypeError, MemoryError) as error:
            raise FormatError(
                f"{path}: damaged header: {error.args[0] if error.args else error!r}"
            ) from error
        except OSError as error:
            raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
        if reader.endianess != GGUFEndian.LITTLE:
            raise FormatError(f"{path}: big-endian GGUF: expected little-endian")
        self._fields = reader.fields
        self.alignment = int(reader.alignment)
        kind = self.get("general.type", "model")
        if kind != "model":
            raise FormatError(f"{path}: general.type is {kind!r}: expected 'model'")
        parts = self.get("split.count", 1)
        if parts > 1:
            raise FormatError(f"{path}: one of {parts} parts of a split GGUF: merge them into one file first")
        self.architecture: str = self.get("general.architecture")
        self.tensors = {tensor.name: _tensor(tensor) for tensor in reader.tensors}

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """A metadata value, checked to have the type of ``default`` when one is given.

        Raises ``FormatError`` when the key is missing and there is no default, or cannot be decoded.
        """
        field = self._fields.get(key)
        if field is None:
            if default is _REQUIRED:
                raise FormatError(f"{self.path}: metadata key {key!r} is missing")
            return default
        try:
            value = field.contents()
        except (UnicodeDecodeError, ValueError, IndexError) as error:
            raise FormatError(f"{self.path}: metadata key {key!r} cannot be decoded: {error}") from error
        if default is not _REQUIRED and default is not None and type(value) is not type(default):
            raise FormatError(
                f"{self.path}: metadata key {key!r} is {value!r}: expected {type(default).__name__}"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number, at least 1. An array of equal numbers (one per layer) counts as one number."""
        value = self.get(key) if default is None else self.get(key, None)
        if value is None:
            assert default is not None
            return default
        if isinstance(value, list) and value:
            if any(v != value[0] for v in value):
                raise FormatError(
                    f"{self.path}: {key} differs from layer to layer ({value}): expected one value"
                )
            value = value[0]
        if type(value) is not int or value < 1:
            raise FormatError(
                f"{self.path}: metadata key {key!r} is {value!r}: expected a whole number above 0"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; of a float32 the shortest decimal that means it (1e-05, not 9.99999974e-06)."""
        value = self.get(key) if default is None else self.get(key, None)
        if value is None:
            assert default is not None
            return default
        if type(value) not in (int, float) or not np.isfinite(value):
            raise FormatError(f"{self.path}: metadata key {key!r} is {value!r}: expected a finite number")
        return float(str(np.float32(value))) if np.float32(value) == value else float(value)

    def token_id(self, role: str) -> int | None:
        """``tokenizer.ggml.<role>_token_id``, checked to be in the vocabulary; None where absent."""
        key = f"tokenizer.ggml.{role}_token_id"
        value = self.get(key, None)
        if value is not None and (type(value) is not int or not 0 <= value < self._token_count):
            raise FormatError(
                f"{self.path}: metadata key {key!r} is {value!r}: "
                f"expected a token id below {self._token_count}"
            )
        return value

    @cached_property
    def _token_count(self) -> int:
        tokens = self.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list):
            raise FormatError(f"{self.path}: tokenizer.ggml.tokens: expected a list of strings")
        return len(tokens)

    @property
    def metadata_keys(self) -> list[str]:
        """All metadata keys, in file order."""
        return [key for key in self._fields if not key.startswith("GGUF.")]


def check_file(path: Path) -> int:
    """The length in bytes of a little-endian GGUF of a known version; reads only its first eight bytes."""
    try:
        # Before opening: the open of a named pipe would wait for its other end.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            start = file.read(8)
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    if start[:4] != _MAGIC[: len(start)] or not start:
        raise FormatError(f"{path}: not a GGUF file: it begins with {start[:4]!r}, expected {_MAGIC!r}")
    if len(start) < 8:
        raise FormatError(f"{path}: truncated: expected a GGUF header, found {len(start)} bytes")
    (version,) = struct.unpack("<I", start[4:])
    if version not in SUPPORTED_VERSIONS:
        if version & 0xFFFF == 0:
            raise FormatError(f"{path}: big-endian GGUF: expected little-endian")
        raise FormatError(
            f"{path}: GGUF version {version}: supported: {', '.join(map(str, SUPPORTED_VERSIONS))}"
        )
    return status.st_size


def _tensor(tensor: gguf.ReaderTensor) -> GgufTensor:
    shape = tuple(int(n) for n in reversed(tensor.shape))
    raw = np.asarray(tensor.data).reshape(-1).view(np.uint8)
    if len(shape) == 2:
        raw = raw.reshape(shape[0], -1)
    return GgufTensor(tensor.name, tensor.tensor_type.name, shape, raw)
