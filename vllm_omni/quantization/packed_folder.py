"""What a model folder holds, read from its JSON files and headers: no weight is read, torch is not
imported."""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_omni.checkpoints.safetensors_file import SafetensorsHeader, TensorEntry, read_header
from vllm_omni.errors import FormatError
from vllm_omni.layout_header import HEADER_BYTES, LAYOUT_VERSION, MAGIC, PACKED_SUFFIX, HeaderFields
from vllm_omni.quantization.options import METHOD_NAME

_INDEX_NAME = "model.safetensors.index.json"
_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True)
class PackedTensor:
    """A packed tensor of a folder: ``n`` outputs over all its segments, ``k`` inputs."""

    module: str
    file: str
    n: int
    k: int
    bits: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class PackedFolder:
    """A model folder: its configuration, its packed tensors by module name, and the names of all others."""

    path: Path
    config: dict[str, Any]
    packed: dict[str, PackedTensor] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    plain_bytes: int = 0

    @property
    def packed_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.packed.values())

    @property
    def quantization(self) -> dict[str, Any] | None:
        """The checkpoint's ``quantization_config``, at the top or in ``text_config``."""
        return self.config.get("quantization_config") or self.text_config.get("quantization_config")

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of ``config.json`` that describes the language model."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def is_cpu_int4(self) -> bool:
        quantization = self.quantization
        return isinstance(quantization, dict) and quantization.get("quant_method") == METHOD_NAME


def read_config(path: Path) -> dict[str, Any]:
    """Read ``config.json`` of the folder ``path``. Raises ``FormatError`` naming the file."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FormatError(f"{path}: no config.json: expected a model folder") from error
    except (OSError, ValueError) as error:
        raise FormatError(f"{file}: expected a JSON object ({error})") from error
    if not isinstance(config, dict):
        raise FormatError(f"{file}: expected a JSON object")
    return config


def read_packed_folder(path: Path) -> PackedFolder:
    """Read a model folder.

    Raises ``FormatError`` naming the file or tensor for a missing, truncated or damaged file, for packed
    bytes of a newer layout, and for a ``cpu_int4`` folder whose weights are pickles. Of another folder's
    pickles the size is taken.
    """
    config = read_config(path)
    pickles = _pickles(path)
    if pickles:
        if PackedFolder(path, config).is_cpu_int4:
            raise FormatError(
                f"{path}: the weights are pickles ({pickles[0].name}): {METHOD_NAME} needs *.safetensors"
            )
        return PackedFolder(path, config, plain_bytes=sum(file.stat().st_size for file in pickles))
    packed: dict[str, PackedTensor] = {}
    plain: set[str] = set()
    plain_bytes = 0
    for file in _weight_files(path):
        header = read_header(file)
        with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for entry in header.entries:
                if is_packed(entry):
                    module = entry.name.removesuffix(PACKED_SUFFIX)
                    packed[module] = _read_packed(header, entry, mapped)
                else:
                    plain.add(entry.name)
                    plain_bytes += entry.nbytes
    folder = PackedFolder(path, config, packed, frozenset(plain), plain_bytes)
    if packed and folder.quantization is None:
        raise FormatError(
            f"{path / 'config.json'}: no quantization_config with quant_method {METHOD_NAME!r}, "
            f"but {next(iter(packed.values())).file} holds packed weights"
        )
    if folder.is_cpu_int4 and not packed:
        raise FormatError(f"{path}: quant_method is {METHOD_NAME!r}, but no file holds a packed weight")
    return folder


def is_packed(entry: TensorEntry) -> bool:
    """Whether a tensor is ours, by name and shape. compressed-tensors uses the same name for int32 words.

    The magic is not asked: a damaged one must be refused, not taken for another format.
    """
    return entry.name.endswith(PACKED_SUFFIX) and entry.dtype == "U8" and len(entry.shape) == 1


def _pickles(path: Path) -> list[Path]:
    """Weights in torch's pickle formats, where the folder has no safetensors."""
    if any(path.glob("*.safetensors")) or (path / _INDEX_NAME).exists():
        return []
    return sorted(file for pattern in _PICKLE_PATTERNS for file in path.glob(pattern))


def _weight_files(path: Path) -> list[Path]:
    index = path / _INDEX_NAME
    if index.exists():
        try:
            names = list(dict.fromkeys(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{index}: expected a JSON object with a weight_map ({error})") from error
        for name in names:
            # A part of a path would name a file outside the folder.
            if not isinstance(name, str) or not name or Path(name).name != name:
                raise FormatError(f"{index}: weight_map names {name!r}, expected a file of this folder")
        files = [path / name for name in sorted(names)]
        for file in files:
            if not file.is_file():
                raise FormatError(f"{file}: missing, but {_INDEX_NAME} names it")
        return files
    files = sorted(path.glob("*.safetensors"))
    if files:
        return files
    raise FormatError(f"{path}: no weights: expected *.safetensors")


def _read_packed(header: SafetensorsHeader, entry: TensorEntry, mapped: mmap.mmap) -> PackedTensor:
    """Walk the segment headers of one tensor; their sections' checksums are verified when the weights are
    loaded."""
    where = f"{header.path}: tensor {entry.name!r}"
    n, k, bits = 0, 0, []
    position = entry.start
    while position < entry.end:
        head = mapped[position : min(position + HEADER_BYTES, entry.end)]
        if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
            raise FormatError(
                f"{where}: expected a packed segment at byte {position - entry.start}, found none"
            )
        fields = HeaderFields.unpack(head)
        if fields.version > LAYOUT_VERSION:
            raise FormatError(
                f"{where}: packed layout version {fields.version}, this release reads up to {LAYOUT_VERSION}"
            )
        if fields.segment_bytes < HEADER_BYTES or position + fields.segment_bytes > entry.end:
            raise FormatError(
                f"{where}: truncated: a segment of {fields.segment_bytes} bytes at byte "
                f"{position - entry.start} of {entry.nbytes}"
            )
        if k not in (0, fields.k):
            raise FormatError(f"{where}: segments of {k} and of {fields.k} inputs, expected one number")
        n, k = n + fields.n, fields.k
        bits.append(fields.bits)
        position += fields.segment_bytes
    if not bits:
        raise FormatError(f"{where}: empty, expected packed segments")
    module = entry.name.removesuffix(PACKED_SUFFIX)
    return PackedTensor(module, header.path.name, n, k, tuple(bits), entry.nbytes)
