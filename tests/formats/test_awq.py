from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.formats import checkpoint_writer as writer
from vllm_omni import int4


@pytest.mark.parametrize(("n", "k"), [(8, 32), (16, 128), (80, 80), (1000, 64), (64, 4304), (8, 7)])
@pytest.mark.parametrize("group_size", [32, 128, -1])
def test_every_value_is_exact(n: int, k: int, group_size: int):
    codes = writer.Codes.random(n, k, group_size)
    packed = int4.from_awq(**writer.awq(codes), group_size=group_size)
    assert packed.shape == (n, k)
    assert np.array_equal(packed.dequantize().double().numpy(), codes.dense())


def test_zero_points_are_deinterleaved_as_the_weight_is():
    """Zero-point = column modulo 16 and all codes 0: any wrong order changes a value."""
    codes = writer.Codes.random(16, 32, 32)
    codes.q[:] = 0
    codes.zeros[:, 0] = np.arange(16)
    codes.scales[:] = 1
    packed = int4.from_awq(**writer.awq(codes), group_size=32)
    assert packed.dequantize()[:, 0].tolist() == [-n for n in range(16)]


def test_a_weight_longer_than_one_slab():
    codes = writer.Codes.random(2112, 4096, 64)
    packed = int4.from_awq(**writer.awq(codes), group_size=64)
    assert np.array_equal(packed.dequantize().double().numpy(), codes.dense())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"qzeros": t["qzeros"][:, :4]}, r"qzeros: expected int32 \[4, 8\], got int32 \[4, 4\]"),
        (lambda t: {"qweight": t["qweight"][:-40]}, r"qzeros: expected int32 \[3, 8\], got int32 \[4, 8\]"),
        (lambda t: {"qweight": t["qweight"].long()}, r"qweight: expected int32 .*, got int64 \[128, 8\]"),
        (lambda t: {"scales": t["scales"][:, 8:]}, r"scales: expected .*\[4, 64\], got float16 \[4, 56\]"),
        (lambda t: {"scales": t["scales"] * torch.inf}, "scales: expected finite values, got -?inf"),
        (lambda _: {"group_size": 20}, "group_size: .* got 20"),
    ],
)
def test_bad_input_is_named(change, message: str):
    written = writer.awq(writer.Codes.random(64, 128, 32))
    with pytest.raises(int4.FormatError, match=message):
        int4.from_awq(**{**written, "group_size": 32, **change(written)})
