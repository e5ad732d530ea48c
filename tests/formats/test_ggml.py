"""Against the ``gguf`` package's own quantization and dequantization."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from vllm_omni import int4

TYPES = ["Q4_0", "Q4_1", "Q8_0"]


def quantized(kind: str, n: int, k: int, seed: int) -> np.ndarray:
    weight = np.random.default_rng(seed).normal(0, 0.04, (n, k)).astype(np.float32)
    return gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 32), (8, 64), (100, 96), (37, 4128), (1040, 4160)])
def test_values_are_those_of_the_gguf_package(kind: str, n: int, k: int):
    raw = quantized(kind, n, k, seed=n + k)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    packed = int4.from_gguf(torch.from_numpy(raw), ggml_type=kind, shape=(n, k))
    assert (packed.shape, packed.group_size) == ((n, k), 32)
    assert np.array_equal(packed.dequantize().numpy(), expected)


@pytest.mark.parametrize("kind", TYPES)
def test_any_bytes_are_read_as_the_gguf_package_reads_them(kind: str):
    """Codes at both ends of their range, negative and zero scales."""
    n, k = 16, 128
    rng = np.random.default_rng(5)
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    raw = rng.integers(0, 256, (n, k // 32, block), dtype=np.uint8)
    floats = 2 if kind == "Q4_1" else 1
    values = rng.normal(0, 0.05, (n, k // 32, floats)).astype(np.float16)
    values[3] = 0
    raw[..., : 2 * floats] = values.view(np.uint8)
    raw = raw.reshape(n, -1)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    packed = int4.from_gguf(torch.from_numpy(raw), ggml_type=kind, shape=(n, k))
    assert np.array_equal(packed.dequantize().numpy(), expected)


def test_flat_bytes_and_enum_members_are_accepted():
    raw = torch.from_numpy(quantized("Q4_0", 8, 64, seed=1))
    packed = int4.from_gguf(raw, ggml_type="Q4_0", shape=(8, 64))
    flat = int4.from_gguf(raw.flatten(), ggml_type=gguf.GGMLQuantizationType.Q4_0, shape=(8, 64))
    assert flat.to_bytes() == packed.to_bytes()


RAW = torch.zeros(64, 18, dtype=torch.uint8)
NAN_SCALE = RAW.clone()
NAN_SCALE[2, 1] = 0x7E


@pytest.mark.parametrize(
    ("raw", "kind", "shape", "message"),
    [
        (RAW[:, :17], "Q4_0", (64, 32), "raw_uint8: expected 1152 bytes .* of Q4_0 .* got 1088 bytes"),
        (RAW, "IQ9_Z", (64, 32), "ggml_type: expected Q4_0, Q4_1, Q8_0, got IQ9_Z"),
        (RAW, "Q4_0", (64, 33), r"shape: .* multiple of 32 for Q4_0, got \(64, 33\)"),
        (RAW, "Q4_0", (64,), r"shape: expected \(N, K\)"),
        (RAW, "Q4_0", (0, 32), r"shape: expected \(N, K\)"),
        (RAW, "Q4_1", (64, 32), "raw_uint8: expected 1280 bytes"),
        (RAW.int(), "Q4_0", (64, 32), r"raw_uint8: expected uint8 \[64, 18\] of Q4_0, got int32 \[64, 18\]"),
        (RAW.numpy(), "Q4_0", (64, 32), "raw_uint8: expected uint8 .*, got ndarray"),
        (NAN_SCALE, "Q4_0", (64, 32), r"Q4_0 scales: expected finite values, got nan at \[2, 0\]"),
    ],
)
def test_bad_input_is_named(raw: torch.Tensor, kind: str, shape: tuple, message: str):
    with pytest.raises(int4.FormatError, match=message):
        int4.from_gguf(raw, ggml_type=kind, shape=shape)
