from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec, read_header
from vllm_omni.errors import FormatError

SPECS = [
    TensorSpec("a.weight_packed", "U8", (128,)),
    TensorSpec("b", "BF16", (4, 8)),
    TensorSpec("c", "F32", (16,)),
]


def write(path: Path, specs: list[TensorSpec] = SPECS) -> dict[str, bytes]:
    rng = np.random.default_rng(7)
    contents = {spec.name: rng.integers(0, 256, spec.nbytes, dtype=np.uint8).tobytes() for spec in specs}
    with SafetensorsWriter(path, specs, aligned=True) as writer:
        for spec in specs:
            writer.write(spec.name, contents[spec.name])
    assert writer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    return contents


def test_the_safetensors_library_reads_what_was_written(tmp_path: Path) -> None:
    contents = write(tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert set(file.keys()) == set(contents)
        for name, expected in contents.items():
            assert file.get_tensor(name).view(-1).view(torch.uint8).numpy().tobytes() == expected
        assert file.get_tensor("b").dtype == torch.bfloat16
        assert tuple(file.get_tensor("b").shape) == (4, 8)


@pytest.mark.parametrize("name_length", range(1, 66))
def test_data_begins_on_a_64_byte_boundary_for_every_header_length(tmp_path: Path, name_length: int) -> None:
    write(tmp_path / "x", [TensorSpec("n" * name_length, "U8", (64,)), TensorSpec("m", "U8", (192,))])
    header = read_header(tmp_path / "x")
    assert header.data_start % 64 == 0
    assert [entry.start % 64 for entry in header.entries] == [0, 0]


def test_header_lists_offsets_in_the_file(tmp_path: Path) -> None:
    contents = write(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    header = read_header(tmp_path / "x")
    assert [entry.name for entry in header.entries] == list(contents)
    for entry in header.entries:
        assert data[entry.start : entry.end] == contents[entry.name]
    assert header.file_bytes == len(data)


def test_an_unaligned_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'t' has 65 bytes.*multiple of 64"):
        SafetensorsWriter(Path("unused"), [TensorSpec("t", "U8", (65,))], aligned=True)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([("c", 64)], "tensor 'c' came, expected 'a.weight_packed'"),
        ([("a.weight_packed", 127)], "127 bytes came, expected 128"),
        ([("a.weight_packed", 128)], "tensor 'b' was never written"),
        ([("a.weight_packed", 128), ("b", 64), ("c", 64), ("c", 64)], "expected no more tensors"),
    ],
)
def test_a_wrong_sequence_leaves_no_file(tmp_path: Path, steps: list[tuple[str, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message), SafetensorsWriter(tmp_path / "x", SPECS) as writer:  # noqa: PT012
        for name, nbytes in steps:
            writer.write(name, bytes(nbytes))
    assert list(tmp_path.iterdir()) == []


def test_truncation_names_tensor_offset_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path)
    b = read_header(path).entries[1]
    path.write_bytes(path.read_bytes()[: b.start + 10])
    with pytest.raises(
        FormatError, match=rf"truncated: tensor 'b' at byte {b.start} needs 64 bytes, the file has 10"
    ):
        read_header(path)


def rewritten(path: Path, change: object) -> None:
    """Replace the JSON header, keeping the data."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    text = change(table)  # type: ignore[operator]
    text = text if isinstance(text, bytes) else json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: b"{nonsense", "not JSON"),
        (lambda t: b"[1]", "not a JSON object"),
        (lambda t: t["b"].pop("dtype") and None, "tensor 'b': expected dtype"),
        (lambda t: t["b"].update(dtype="Q9"), "tensor 'b': unknown dtype 'Q9'"),
        (lambda t: t["b"].update(shape=[4, 9]), "needs 72 bytes, its offsets hold 64"),
        (lambda t: t["b"].update(data_offsets=[64, 128]), "tensor 'b' begins at byte"),
        (lambda t: t["b"].update(shape=[-4, -8]), "tensor 'b': expected dtype"),
        (lambda t: t.pop("c") and None, "expected .* bytes, found"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, change: object, message: str) -> None:
    write(tmp_path / "x")
    rewritten(tmp_path / "x", change)
    with pytest.raises(FormatError, match=message):
        read_header(tmp_path / "x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated: expected an 8-byte header length"),
        (b"\x10\0\0\0\0\0\0\0{}", "truncated: the header ends at byte 24, the file has 10"),
        (b"\xff" * 16, "not a safetensors file: header length"),
    ],
)
def test_a_short_or_foreign_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        read_header(tmp_path / "x")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read_header(tmp_path / "absent")
