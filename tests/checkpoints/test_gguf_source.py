from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from vllm_omni.checkpoints.gguf_source import GgufSource
from vllm_omni.errors import FormatError


def test_tensors_and_metadata_as_the_library_reads_them(write_tiny: Callable[..., Path]) -> None:
    path = write_tiny(types={"attn_q.weight": T.Q8_0, "attn_k.weight": T.Q4_1, "ffn_norm.weight": T.F16})
    source, reader = GgufSource(path), gguf.GGUFReader(path)
    assert source.metadata_keys == [key for key in reader.fields if not key.startswith("GGUF.")]
    for key in source.metadata_keys:
        assert source.get(key) == reader.fields[key].contents(), key
    assert list(source.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        ours = source.tensors[tensor.name]
        assert ours.type_name == tensor.tensor_type.name
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert ours.raw.tobytes() == tensor.data.tobytes()
        if not ours.packed:
            assert np.array_equal(ours.floats(), np.asarray(tensor.data, np.float32))


def test_bf16_values(write_tiny: Callable[..., Path]) -> None:
    source = GgufSource(write_tiny(types={"ffn_norm.weight": T.BF16}))
    tensor = source.tensors["blk.0.ffn_norm.weight"]
    assert tensor.type_name == "BF16"
    assert np.array_equal(tensor.floats(), gguf.quants.dequantize(tensor.raw, T.BF16))


def test_a_missing_file() -> None:
    with pytest.raises(FormatError, match=r"absent\.gguf: no such file"):
        GgufSource(Path("absent.gguf"))


def test_a_folder_and_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(FormatError, match="not a regular file"):
            GgufSource(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF file"),
        (b"\x80\x02}q\x00.", "not a GGUF file: it begins with"),
        (b"GG", "truncated: expected a GGUF header, found 2 bytes"),
        (b"GGUF\x01\0\0\0" + bytes(16), "GGUF version 1: supported: 2, 3"),
        (b"GGUF\x63\0\0\0" + bytes(16), "GGUF version 99: supported: 2, 3"),
        (b"GGUF\0\0\0\x03" + bytes(16), "big-endian GGUF"),
    ],
)
def test_what_is_not_a_gguf(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        GgufSource(tmp_path / "x.gguf")


def test_every_truncation_is_told_as_one(write_tiny: Callable[..., Path]) -> None:
    path = write_tiny()
    data = path.read_bytes()
    reader = gguf.GGUFReader(path)
    last = max(reader.tensors, key=lambda t: t.data_offset)
    del reader
    cuts = [*range(8, last.data_offset, 997), last.data_offset, last.data_offset + last.n_bytes - 1]
    for cut in cuts:
        path.write_bytes(data[:cut])
        with pytest.raises(FormatError, match="truncated"):
            GgufSource(path)


def test_truncated_data_names_the_tensor(write_tiny: Callable[..., Path]) -> None:
    path = write_tiny()
    tensor = {t.name: t for t in gguf.GGUFReader(path).tensors}["blk.1.ffn_down.weight"]
    start, nbytes = int(tensor.data_offset), int(tensor.n_bytes)
    data = path.read_bytes()
    path.write_bytes(data[: start + 100])
    with pytest.raises(
        FormatError,
        match=rf"truncated: tensor 'blk.1.ffn_down.weight' at byte {start} needs {nbytes} bytes, .* has 100",
    ):
        GgufSource(path)


def test_no_damage_to_the_header_escapes_as_another_error(write_tiny: Callable[..., Path]) -> None:
    path = write_tiny()
    reader = gguf.GGUFReader(path)
    data, header_bytes = path.read_bytes(), int(reader.data_offset)
    del reader
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for position in rng.integers(8, header_bytes, 3):
            damaged[position] = int(rng.integers(0, 256))
        path.write_bytes(damaged)
        try:
            source = GgufSource(path)
            for key in source.metadata_keys:
                source.get(key)
        except FormatError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("kind", [T.Q4_K, T.Q6_K, T.IQ4_NL, T.MXFP4, T.Q5_0, T.F64])
def test_an_unsupported_tensor_type_is_named(tmp_path: Path, kind: T) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    raw = np.zeros((4, 256 // block * block_bytes), np.uint8)
    if kind == T.F64:
        writer.add_tensor("blk.0.ffn_up.weight", np.zeros((4, 256)))
    else:
        writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        FormatError,
        match=rf"'blk.0.ffn_up.weight' has type {kind.name}; supported: Q4_0, Q4_1, Q8_0, F32, F16, BF16",
    ):
        GgufSource(tmp_path / "x.gguf")


def test_a_type_the_library_does_not_know(write_tiny: Callable[..., Path]) -> None:
    path = write_tiny()
    data = path.read_bytes()
    name = b"blk.0.attn_q.weight"
    # name | u32 dimensions | u64 × 2 | u32 type
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 16
    path.write_bytes(data[:at] + struct.pack("<I", 4321) + data[at + 4 :])
    with pytest.raises(FormatError, match=r"tensor 'blk.0.attn_q.weight' has unknown type 4321"):
        GgufSource(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.type": "adapter"}, "general.type is 'adapter': expected 'model'"),
        ({"split.count": 3}, "one of 3 parts of a split GGUF"),
        ({"general.type": 7}, "'general.type' is 7: expected str"),
    ],
)
def test_other_kinds_of_gguf(
    write_tiny: Callable[..., Path], metadata: dict[str, object], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        GgufSource(write_tiny(metadata=metadata))


@pytest.mark.parametrize("value", [0, "64", [64, 32]])
def test_a_whole_number_is_asked_for(write_tiny: Callable[..., Path], value: object) -> None:
    source = GgufSource(write_tiny(metadata={"llama.embedding_length": value}))
    with pytest.raises(FormatError, match=r"llama\.embedding_length"):
        source.integer("llama.embedding_length")


def test_one_number_per_layer_counts_as_one_when_equal(write_tiny: Callable[..., Path]) -> None:
    source = GgufSource(write_tiny(metadata={"llama.attention.head_count_kv": [2, 2]}))
    assert source.integer("llama.attention.head_count_kv") == 2
