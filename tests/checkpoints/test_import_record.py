from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_omni.checkpoints.gguf_import import PACKED_FILE, import_gguf
from vllm_omni.checkpoints.import_record import RECORD_NAME, ImportRecord, file_sha256, read_record
from vllm_omni.errors import FormatError


@pytest.fixture
def folder(write_tiny: Callable[..., Path], tmp_path: Path) -> Path:
    import_gguf(write_tiny(), tmp_path / "model")
    return tmp_path / "model"


def test_the_record_names_its_source(folder: Path, tmp_path: Path) -> None:
    record = read_record(folder)
    source = tmp_path / "tiny.gguf"
    assert record.source_name == "tiny.gguf"
    assert record.source_sha256 == file_sha256(source)
    assert record.layout_version == 1
    assert record.weights_sha256 == file_sha256(folder / PACKED_FILE)
    assert set(record.versions) == {"vllm-omni-edge", "gguf"}
    assert record.is_of(source)
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    assert not record.is_of(source)
    source.write_bytes(data[:-1])
    assert not record.is_of(source)


def test_a_folder_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"not an imported model: {RECORD_NAME} is missing"):
        read_record(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"unexpected": 1}', "null"])
def test_a_damaged_record(folder: Path, text: str) -> None:
    (folder / RECORD_NAME).write_text(text)
    with pytest.raises(FormatError, match=f"{RECORD_NAME}: cannot be read"):
        read_record(folder)


def test_a_newer_record(folder: Path) -> None:
    fields = json.loads((folder / RECORD_NAME).read_text()) | {"record_version": 2}
    ImportRecord(**fields).write(folder)
    with pytest.raises(FormatError, match="record version 2: expected 1"):
        read_record(folder)


def test_a_file_of_another_length_or_missing(folder: Path) -> None:
    packed = folder / PACKED_FILE
    data = packed.read_bytes()
    packed.write_bytes(data[:-1])
    with pytest.raises(
        FormatError, match=f"{PACKED_FILE}: expected {len(data)} bytes, found {len(data) - 1}"
    ):
        read_record(folder)
    packed.unlink()
    with pytest.raises(FormatError, match=f"{PACKED_FILE}: cannot be read"):
        read_record(folder)
