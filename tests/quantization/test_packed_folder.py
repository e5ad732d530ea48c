from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.quantization.tiny_checkpoint import (
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    VOCABULARY,
    TinyCheckpoint,
)
from vllm_omni import int4
from vllm_omni.errors import FormatError
from vllm_omni.layout_header import HEADER_BYTES, LAYOUT_VERSION, MAGIC, HeaderFields
from vllm_omni.quantization.packed_folder import read_packed_folder

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "model"
    TinyCheckpoint(bits_of=lambda module: 8 if "embed" in module else 4).write(folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def test_reads_names_shapes_and_bits(written: Path) -> None:
    found = read_packed_folder(written)
    assert found.is_cpu_int4
    assert len(found.packed) == 7 * LAYERS + 1
    table = found.packed["model.embed_tokens"]
    assert (table.n, table.k, table.bits, table.file) == (VOCABULARY, HIDDEN, (8,), FIRST)
    down = found.packed["model.layers.1.mlp.down_proj"]
    assert (down.n, down.k, down.bits) == (HIDDEN, INTERMEDIATE, (4,))
    assert "model.norm.weight" in found.plain
    assert found.packed_bytes + 8 < (written / FIRST).stat().st_size
    assert found.plain_bytes == (2 * LAYERS + 1) * HIDDEN * 4


def test_a_fused_tensor_counts_all_its_segments(tmp_path: Path) -> None:
    TinyCheckpoint(fused=True).write(tmp_path / "model")
    qkv = read_packed_folder(tmp_path / "model").packed["model.layers.0.self_attn.qkv_proj"]
    assert (qkv.n, qkv.k, qkv.bits) == (HIDDEN + 2 * KV_HEADS * 32, HIDDEN, (4, 4, 4))


def test_the_header_agrees_with_the_packed_bytes() -> None:
    weight = int4.quantize(torch.randn(16, 32), group_size=32)
    fields = HeaderFields.unpack(weight.to_bytes()[:HEADER_BYTES])
    assert (fields.magic, fields.version, fields.header_bytes) == (MAGIC, LAYOUT_VERSION, HEADER_BYTES)
    assert (fields.n, fields.k, fields.bits, fields.group_size) == (16, 32, 4, 32)
    assert HEADER_BYTES + sum(fields.section_bytes) == fields.segment_bytes == weight.nbytes


def test_headers_are_read_without_torch() -> None:
    script = "import sys, vllm_omni.quantization.packed_folder; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def overwrite(file: Path, at: int, value: bytes) -> None:
    with open(file, "r+b") as handle:
        handle.seek(at)
        handle.write(value)


def data_start(file: Path) -> int:
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


def truncate(folder: Path) -> None:
    file = folder / FIRST
    with open(file, "r+b") as handle:
        handle.truncate(file.stat().st_size - 100)


def damage_magic(folder: Path) -> None:
    overwrite(folder / FIRST, data_start(folder / FIRST), b"X")


def make_newer(folder: Path) -> None:
    overwrite(folder / FIRST, data_start(folder / FIRST) + 8, (2).to_bytes(4, "little"))


def pickle(folder: Path) -> None:
    for name in (FIRST, SECOND, INDEX):
        (folder / name).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")


def point_the_index(at: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / INDEX).write_text(json.dumps({"weight_map": {"a": FIRST, "b": at}}))

    return damage


def forget_quantization(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (truncate, [FIRST, "truncated"]),
        (damage_magic, [FIRST, "weight_packed", "expected a packed segment"]),
        (make_newer, [FIRST, "weight_packed", "version 2", "up to 1"]),
        (lambda folder: (folder / FIRST).unlink(), [FIRST, "missing"]),
        (lambda folder: (folder / FIRST).write_bytes(b""), [FIRST, "truncated"]),
        (lambda folder: (folder / INDEX).write_text("[]"), [INDEX, "weight_map"]),
        (point_the_index(7), [INDEX, "names 7, expected a file of this folder"]),
        (point_the_index(None), [INDEX, "names None, expected"]),
        (point_the_index(["a"]), [INDEX, "weight_map"]),
        (point_the_index(""), [INDEX, "names '', expected"]),
        (point_the_index(f"../model/{SECOND}"), [INDEX, f"names '../model/{SECOND}', expected"]),
        (point_the_index("/etc/hostname"), [INDEX, "names '/etc/hostname', expected"]),
        (lambda folder: (folder / "config.json").unlink(), ["no config.json"]),
        (lambda folder: (folder / "config.json").write_text("{"), ["config.json", "expected a JSON object"]),
        (pickle, ["pytorch_model.bin", "pickles"]),
        (forget_quantization, ["config.json", "cpu_int4"]),
    ],
)
def test_damage_is_one_line_that_names_the_place(folder: Path, damage, messages: list[str]) -> None:
    damage(folder)
    with pytest.raises(FormatError) as refused:
        read_packed_folder(folder)
    for message in messages:
        assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pickles_of_another_format_are_sized_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 10)
    found = read_packed_folder(tmp_path)
    assert (found.plain_bytes, found.packed, found.is_cpu_int4) == (10, {}, False)


def test_words_of_compressed_tensors_are_not_ours(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text("{}")
    save_file({"a.weight_packed": torch.zeros(4, 4, dtype=torch.int32)}, tmp_path / "model.safetensors")
    assert read_packed_folder(tmp_path).packed == {}
