"""``omni_import.json``: what an imported folder was made from, and by what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_omni.errors import FormatError

RECORD_NAME = "omni_import.json"
RECORD_VERSION = 1

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ImportRecord:
    """The record of one import. ``files`` are the lengths in bytes of everything else in the folder."""

    record_version: int
    source_name: str
    source_bytes: int
    source_sha256: str
    layout_version: int
    weights_sha256: str
    versions: dict[str, str]
    files: dict[str, int]

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        (folder / RECORD_NAME).write_text(text, encoding="utf-8")

    def is_of(self, source: Path) -> bool:
        """Whether the folder was made from a file with these contents; reads it when the length agrees."""
        return source.stat().st_size == self.source_bytes and file_sha256(source) == self.source_sha256


def read_record(folder: Path) -> ImportRecord:
    """The record of an imported folder, checked against the files beside it.

    Raises ``FormatError`` when there is none, when it was written by a newer version, or when a file is
    missing or of another length. Contents are checked by ``packed_file.validate_packed_file``.
    """
    path = folder / RECORD_NAME
    try:
        record = ImportRecord(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FormatError(f"{folder}: not an imported model: {RECORD_NAME} is missing") from None
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from error
    if record.record_version != RECORD_VERSION:
        raise FormatError(f"{path}: record version {record.record_version}: expected {RECORD_VERSION}")
    for name, expected in record.files.items():
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            raise FormatError(f"{folder / name}: cannot be read: {error.strerror}") from error
        if found != expected:
            raise FormatError(f"{folder / name}: expected {expected} bytes, found {found}")
    return record


def folder_files(folder: Path) -> dict[str, int]:
    """Relative name and length of every file in a folder, the record excepted."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.stat().st_size for p in paths if p.name != RECORD_NAME}


def file_sha256(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Digest of a file; ``progress`` is called with the number of bytes of each piece read."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
            if progress is not None:
                progress(len(piece))
    return digest.hexdigest()
