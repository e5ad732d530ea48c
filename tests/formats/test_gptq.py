from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tests.formats import checkpoint_writer as writer
from vllm_omni import int4

SHAPES = [(8, 32), (16, 64), (24, 80), (80, 96), (100, 40), (1, 64), (64, 4304), (1000, 64)]


def same(packed: int4.PackedWeight, codes: writer.Codes) -> bool:
    dense = codes.dense()
    return packed.shape == dense.shape and np.array_equal(packed.dequantize().double().numpy(), dense)


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("group_size", [32, 64, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_every_value_is_exact(n: int, k: int, group_size: int, bits: int):
    for version, symmetric in (("gptq", False), ("gptq_v2", False), ("gptq", True)):
        codes = writer.Codes.random(n, k, group_size, bits=bits, symmetric=symmetric)
        packed = int4.from_gptq(
            **writer.gptq(codes, version),
            group_size=group_size,
            bits=bits,
            checkpoint_format=version,
            sym=symmetric,
        )
        assert same(packed, codes)
        assert (packed.bits, packed.group_size) == (bits, group_size)
        assert packed.segments[0].zero_kind == ("none" if symmetric else "u8")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("written", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
def test_a_symmetric_weight_is_read_right_under_either_label(written: str, label: str, bits: int):
    codes = writer.Codes.random(24, 64, 32, bits=bits, symmetric=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        packed = int4.from_gptq(
            **writer.gptq(codes, written), group_size=32, bits=bits, checkpoint_format=label
        )
    assert same(packed, codes)
    assert len(caught) == (written != label)
    assert all(f"checkpoint_format says {label}" in str(w.message) for w in caught)


@pytest.mark.parametrize("bits", [4, 8])
def test_stored_zero_points_wrap(bits: int):
    top = 2**bits
    codes = writer.Codes.random(8, 32, 32, bits=bits)
    codes.zeros[:, 0] = [0, top - 1, 1, top // 2, 0, 2, top - 2, 3]
    stored = writer.gptq(codes)["qzeros"]
    assert int(stored[0, 0]) & (top - 1) == top - 1  # zero-point 0 is stored as the largest code
    assert same(int4.from_gptq(**writer.gptq(codes), group_size=32, bits=bits, sym=False), codes)


def test_an_asymmetric_weight_is_refused_as_symmetric():
    codes = writer.Codes.random(16, 64, 32)
    with pytest.raises(int4.FormatError, match=r"qzeros: expected 7 throughout \(gptq\) or 8"):
        int4.from_gptq(**writer.gptq(codes), group_size=32, sym=True)


@pytest.mark.parametrize(("k", "group_size"), [(128, 32), (80, 32), (96, 48), (64, 8)])
@pytest.mark.parametrize("bits", [4, 8])
def test_act_order_is_undone(k: int, group_size: int, bits: int):
    codes = writer.Codes.random(20, k, group_size, bits=bits, act_order=True)
    arguments = {**writer.gptq(codes, "gptq_v2"), "group_size": group_size, "bits": bits}
    packed = int4.from_gptq(**arguments, g_idx=writer.g_idx(codes), checkpoint_format="gptq_v2", sym=False)
    assert same(packed, codes)
    assert packed.segments[0].permuted
    x = torch.randn(3, k)
    expected = x.double() @ torch.from_numpy(codes.dense()).T
    torch.testing.assert_close(packed.linear(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["sorted", "int64", "minus one"])
def test_a_g_idx_without_order_means_none(kind: str):
    codes = writer.Codes.random(16, 80, 32)
    g_idx = {
        "sorted": writer.g_idx(codes),
        "int64": writer.g_idx(codes).long(),
        "minus one": torch.full((80,), -1, dtype=torch.int32),
    }[kind]
    plain = int4.from_gptq(**writer.gptq(codes), group_size=32, sym=False)
    assert int4.from_gptq(**writer.gptq(codes), g_idx=g_idx, group_size=32, sym=False).to_bytes() == (
        plain.to_bytes()
    )


def changed(g_idx: torch.Tensor, column: int, group: int) -> torch.Tensor:
    g_idx = g_idx.clone()
    g_idx[column] = group
    return g_idx


G_IDX = torch.arange(80, dtype=torch.int32) // 32


@pytest.mark.parametrize(
    ("g_idx", "message"),
    [
        (changed(G_IDX, 5, 3), "g_idx: expected groups 0 to 2, got 3 for column 5"),
        (changed(G_IDX, 7, -1), "g_idx: expected groups 0 to 2, got -1 for column 7"),
        (changed(G_IDX, 5, 1), "g_idx: expected 32 columns in group 0, got 31"),
        (G_IDX.flip(0).sub(2).neg(), "g_idx: expected 32 columns in group 0, got 16"),
        (G_IDX[:-1], "g_idx: expected int32 or int64 \\[80\\], got int32 \\[79\\]"),
        (G_IDX.float(), "g_idx: expected int32 or int64 \\[80\\], got float32"),
    ],
)
def test_a_g_idx_of_unequal_groups_is_refused(g_idx: torch.Tensor, message: str):
    codes = writer.Codes.random(16, 80, 32)
    with pytest.raises(int4.FormatError, match=message):
        int4.from_gptq(**writer.gptq(codes), g_idx=g_idx, group_size=32, sym=False)


def with_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[1, 3] = value
    return tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"qweight": t["qweight"][:-5]}, r"scales: expected .*\[3, 64\], got float16 \[4, 64\]"),
        (lambda t: {"qweight": t["qweight"].float()}, r"qweight: expected int32 .*, got float32"),
        (lambda t: {"qweight": t["qweight"][0]}, r"qweight: expected int32 .*, got int32 \[64\]"),
        (lambda t: {"qweight": t["qweight"][:0]}, r"qweight: expected int32 .*, got int32 \[0, 64\]"),
        (lambda t: {"qweight": t["qweight"].numpy()}, "qweight: expected int32 .*, got ndarray"),
        (lambda t: {"scales": t["scales"][:, :32]}, r"scales: expected .*\[4, 64\], got float16 \[4, 32\]"),
        (lambda t: {"scales": t["scales"].double()}, "scales: expected float16 or .*, got float64"),
        (lambda t: {"scales": with_value(t["scales"], float("nan"))}, r"scales: .* got nan at \[1, 3\]"),
        (lambda t: {"scales": with_value(t["scales"], float("inf"))}, r"scales: .* got inf at \[1, 3\]"),
        (lambda t: {"scales": t["scales"].float() * 1.0001}, "scales: .* that neither holds exactly"),
        (lambda t: {"qzeros": t["qzeros"][:1]}, r"qzeros: expected int32 \[4, 8\], got int32 \[1, 8\]"),
        (lambda _: {"group_size": 0}, "group_size: expected a positive multiple of 8, .* got 0"),
        (lambda _: {"group_size": -7}, "group_size: .* got -7"),
        (lambda _: {"group_size": 12}, "group_size: .* got 12"),
        (lambda _: {"group_size": 32.0}, "group_size: .* got 32.0"),
        (lambda _: {"bits": 3}, "bits: expected 4 or 8, got 3"),
        (
            lambda _: {"checkpoint_format": "marlin"},
            "checkpoint_format: expected gptq or gptq_v2, got 'marlin'",
        ),
    ],
)
def test_bad_input_is_named(change, message: str):
    written = writer.gptq(writer.Codes.random(64, 128, 32))
    arguments = {**written, "group_size": 32, "sym": False, **change(written)}
    with pytest.raises(int4.FormatError, match=message):
        int4.from_gptq(**arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_keep_the_type_they_are_exact_in(dtype: torch.dtype):
    written = writer.gptq(writer.Codes.random(16, 64, 32, symmetric=True))
    scales = written["scales"].to(dtype)
    narrow = int4.from_gptq(**{**written, "scales": scales}, group_size=32)
    assert narrow.segments[0].scale_type == ("f16" if dtype == torch.float16 else "bf16")
    # bfloat16 values between 2^-14 and 2^16 are exact in float16 too: there float16 is taken.
    scales = scales * 2.0**-30 if dtype == torch.bfloat16 else scales
    wide = int4.from_gptq(**{**written, "scales": scales.float()}, group_size=32)
    assert wide.segments[0].scale_type == ("f16" if dtype == torch.float16 else "bf16")
    expected = int4.from_gptq(**{**written, "scales": scales}, group_size=32)
    assert wide.to_bytes() == expected.to_bytes()


def test_a_large_weight_is_converted_in_slabs():
    """More elements than one slab holds, rows that do not divide it."""
    codes = writer.Codes.random(1050, 4304, 128, act_order=True)
    packed = int4.from_gptq(**writer.gptq(codes), g_idx=writer.g_idx(codes), group_size=128, sym=False)
    assert same(packed, codes)
