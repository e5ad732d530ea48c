from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.formats import checkpoint_writer as writer
from vllm_omni import int4


@pytest.mark.parametrize(("n", "k"), [(1, 32), (8, 512), (100, 80), (17, 75), (1000, 64), (64, 4304), (5, 9)])
@pytest.mark.parametrize("group_size", [32, 128, -1])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [True, False])
def test_every_value_is_exact(n: int, k: int, group_size: int, bits: int, zero_points: bool):
    codes = writer.Codes.random(n, k, group_size, bits=bits, symmetric=not zero_points)
    written = writer.compressed(codes, zero_points=zero_points)
    packed = int4.from_compressed_tensors(**written, group_size=group_size)
    assert (packed.shape, packed.bits) == ((n, k), bits)
    assert np.array_equal(packed.dequantize().double().numpy(), codes.dense())
    told = int4.from_compressed_tensors(**written, group_size=group_size, bits=bits)
    assert told.to_bytes() == packed.to_bytes()


@pytest.mark.parametrize("bits", [4, 8])
def test_act_order_is_undone(bits: int):
    codes = writer.Codes.random(33, 160, 64, bits=bits, act_order=True)
    packed = int4.from_compressed_tensors(
        **writer.compressed(codes, zero_points=True), weight_g_idx=writer.g_idx(codes), group_size=64
    )
    assert np.array_equal(packed.dequantize().double().numpy(), codes.dense())


def test_zero_points_in_the_middle_are_left_out():
    codes = writer.Codes.random(16, 64, 32, symmetric=True)
    with_zeros = int4.from_compressed_tensors(**writer.compressed(codes, zero_points=True), group_size=32)
    without = int4.from_compressed_tensors(**writer.compressed(codes, zero_points=False), group_size=32)
    assert with_zeros.to_bytes() == without.to_bytes()


def test_bits_that_the_words_do_not_tell_must_be_given():
    codes = writer.Codes.random(3, 4, -1, bits=8)
    written = writer.compressed(codes, zero_points=True)
    with pytest.raises(int4.FormatError, match=r"bits: expected 4 or 8 .* whose words fit both"):
        int4.from_compressed_tensors(**written, group_size=-1)
    packed = int4.from_compressed_tensors(**written, group_size=-1, bits=8)
    assert np.array_equal(packed.dequantize().double().numpy(), codes.dense())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_shape": torch.tensor([64, 256])}, r"weight_packed: .* for weight_shape \[64, 256\]"),
        (
            {"weight_shape": torch.tensor([64, 0])},
            r"weight_shape: expected two positive numbers, got \[64, 0\]",
        ),
        ({"weight_shape": torch.tensor([64.0, 128.0])}, "weight_shape: expected int64 or int32"),
        ({"weight_shape": torch.tensor([63, 128])}, "weight_packed: expected int32"),
        ({"bits": 8}, r"weight_packed: expected int32 \[64, 32\] .* at 8 bits, got int32 \[64, 16\]"),
        ({"bits": 5}, "bits: expected 4 or 8, got 5"),
        (
            {"weight_scale": torch.ones(64, 3).half()},
            r"weight_scale: expected .*\[64, 4\], got float16 \[64, 3\]",
        ),
        (
            {"weight_zero_point": torch.zeros(64, 4, dtype=torch.int32)},
            r"weight_zero_point: expected int32 \[8, 4\], got int32 \[64, 4\]",
        ),
        ({"weight_g_idx": torch.full((128,), 4)}, "weight_g_idx: expected groups 0 to 3, got 4"),
    ],
)
def test_bad_input_is_named(change: dict, message: str):
    written = writer.compressed(writer.Codes.random(64, 128, 32), zero_points=True)
    with pytest.raises(int4.FormatError, match=message):
        int4.from_compressed_tensors(**{**written, "group_size": 32, **change})
