from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vllm_omni import int4
from vllm_omni.checkpoints.packed_file import packed_tensors, validate_packed_file
from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec, read_header
from vllm_omni.errors import FormatError

NAMES = ("a.weight_packed", "b.weight_packed")


def write(path: Path, n: int = 48, k: int = 96) -> dict[str, int4.PackedWeight]:
    generator = torch.Generator().manual_seed(5)
    weights = {
        name: int4.quantize(torch.randn(n, k, generator=generator), group_size=32, symmetric=name == NAMES[0])
        for name in NAMES
    }
    specs = [TensorSpec(name, "U8", (weight.nbytes,)) for name, weight in weights.items()]
    with SafetensorsWriter(path, specs, aligned=True) as writer:
        for name, weight in weights.items():
            writer.write(name, weight.data.numpy().data)
    return weights


def test_mapped_tensors_are_the_written_ones(tmp_path: Path) -> None:
    weights = write(tmp_path / "x")
    found = dict(packed_tensors(tmp_path / "x"))
    assert {entry.name for entry in found} == set(NAMES)
    for entry, data in found.items():
        assert torch.equal(data, weights[entry.name].data)
        assert data.data_ptr() % 64 == 0
    assert [item.entry.name for item in validate_packed_file(tmp_path / "x")] == list(NAMES)
    assert {
        (item.n, item.k, item.bits, item.group_size) for item in validate_packed_file(tmp_path / "x")
    } == {(48, 96, 4, 32)}


def test_a_flipped_byte_anywhere_in_the_data_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path)
    data = path.read_bytes()
    for entry in read_header(path).entries:
        for position in range(entry.start, entry.end, 41):
            damaged = bytearray(data)
            damaged[position] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(FormatError, match=rf"x: tensor '{entry.name}': "):
                validate_packed_file(path)


def test_without_verify_a_flipped_code_passes_and_a_flipped_header_does_not(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path)
    data = path.read_bytes()
    entry = read_header(path).entries[1]
    for position, refused in ((entry.start + 200, False), (entry.start + 16, True)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        if refused:
            with pytest.raises(FormatError, match=r"tensor 'b\.weight_packed'"):
                validate_packed_file(path, verify=False)
        else:
            assert len(validate_packed_file(path, verify=False)) == 2


def test_a_newer_layout_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path)
    entry = read_header(path).entries[1]
    data = bytearray(path.read_bytes())
    data[entry.start + 8 : entry.start + 12] = (2).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"tensor 'b\.weight_packed'.*version 2"):
        validate_packed_file(path)


def test_a_truncated_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path)
    entry = read_header(path).entries[1]
    path.write_bytes(path.read_bytes()[: entry.end - 1])
    with pytest.raises(
        FormatError,
        match=rf"truncated: tensor 'b.weight_packed' at byte {entry.start} needs {entry.nbytes} bytes",
    ):
        validate_packed_file(path)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([TensorSpec("b.weight_packed", "I8", (64,))], r"is I8 \[64\]: expected one row of U8"),
        ([TensorSpec("b.weight_packed", "U8", (8, 8))], r"is U8 \[8, 8\]: expected one row of U8"),
        ([TensorSpec("b.weight_packed", "U8", (64,))], "tensor 'b.weight_packed': packed tensor"),
        (
            [TensorSpec("a", "U8", (32,)), TensorSpec("b.weight_packed", "U8", (64,))],
            "expected a multiple of 64",
        ),
    ],
)
def test_what_is_not_a_packed_tensor_is_refused(
    tmp_path: Path, specs: list[TensorSpec], message: str
) -> None:
    with SafetensorsWriter(tmp_path / "x", specs) as writer:
        for spec in specs:
            writer.write(spec.name, bytes(spec.nbytes))
    with pytest.raises(FormatError, match=message):
        validate_packed_file(tmp_path / "x")


READER = """
import sys
import torch
from safetensors import safe_open

with safe_open(sys.argv[1], "pt") as file:
    tensors = [file.get_tensor(name) for name in file.keys()]
assert all(t.data_ptr() % 64 == 0 for t in tensors)
print(sum(int(t.sum(dtype=torch.int64)) for t in tensors), flush=True)
sys.stdin.readline()
"""


def mapping_bytes(pid: int, path: Path) -> dict[str, int]:
    """Rss, Pss and Private_Dirty of a process's mappings of a file."""
    totals = dict.fromkeys(("Rss", "Pss", "Private_Dirty"), 0)
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and (found := re.match(r"(\w+): +(\d+) kB", line)) and found[1] in totals:
            totals[found[1]] += int(found[2]) * 1024
    return totals


def test_two_processes_share_the_pages(tmp_path: Path) -> None:
    """As vLLM opens the file. Pss divides a page by the number of its users, so two users pay half each."""
    path = tmp_path / "model.safetensors"
    weights = write(path, n=2048, k=4096)
    size = sum(weight.nbytes for weight in weights.values())
    pipe = subprocess.PIPE
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, str(path)], stdin=pipe, stdout=pipe, text=True)
        for _ in range(2)
    ]
    try:
        sums = {reader.stdout.readline() for reader in readers if reader.stdout is not None}
        assert sums == {f"{sum(int(w.data.sum(dtype=torch.int64)) for w in weights.values())}\n"}
        for reader in readers:
            found = mapping_bytes(reader.pid, path)
            assert found["Rss"] >= size
            assert found["Pss"] <= 0.51 * found["Rss"]
            assert found["Private_Dirty"] == 0
    finally:
        for reader in readers:
            reader.communicate("\n", timeout=60)
