from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.formats import checkpoint_writer as writer
from vllm_omni import _rust, int4, monitor
from vllm_omni.errors import OmniError

LEVELS = ("scalar", "avx2", "avx_vnni", "avx512", "amx")
# Largest relative error (Euclidean norm) against float64: the rounding of the result, or of int8 activations.
BOUNDS = {
    (torch.float32, "native"): 2e-6,
    (torch.float16, "native"): 1e-3,
    (torch.bfloat16, "native"): 6e-3,
    (torch.float32, "int8"): 2e-2,
    (torch.bfloat16, "int8"): 2e-2,
    (torch.bfloat16, "int8_32"): 2e-2,
}


@pytest.fixture(params=LEVELS)
def isa_level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _rust.isa_level()
    try:
        _rust.set_isa_level(request.param)
    except ValueError:
        pytest.skip(f"this CPU lacks {request.param}")
    yield request.param
    _rust.set_isa_level(before)


def asymmetric(
    n: int, k: int, group_size: int, bits: int = 4, **kinds
) -> tuple[int4.PackedWeight, np.ndarray]:
    codes = writer.Codes.random(n, k, group_size, bits=bits, **kinds)
    written = writer.compressed(codes, zero_points=True)
    g_idx = writer.g_idx(codes) if kinds.get("act_order") else None
    packed = int4.from_compressed_tensors(**written, weight_g_idx=g_idx, group_size=group_size, bits=bits)
    return packed, codes.dense()


def relative_error(got: torch.Tensor, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got.double().numpy() - expected) / np.linalg.norm(expected))


SHAPES = [
    (1, 8, 8),
    (8, 80, 32),
    (16, 75, -1),
    (100, 96, 32),
    (64, 4304, 32),
    (1000, 64, 64),
    (48, 520, 40),
    (33, 300, 264),
]


@pytest.mark.parametrize(("n", "k", "group_size"), SHAPES)
@pytest.mark.parametrize("bits", [4, 8])
def test_linear_matches_float64(isa_level: str, n: int, k: int, group_size: int, bits: int):
    packed, dense = asymmetric(n, k, group_size, bits)
    rng = np.random.default_rng(n)
    for m in (1, 3, 8, 17):
        values = torch.from_numpy(rng.standard_normal((m, k)))
        for (dtype, activation), bound in BOUNDS.items():
            x = values.to(dtype)
            y = packed.linear(x, activation=activation)
            assert (y.shape, y.dtype) == ((m, n), dtype)
            assert relative_error(y, x.double().numpy() @ dense.T) <= bound, (m, dtype, activation)


def test_linear_takes_thousands_of_rows(isa_level: str):
    packed, dense = asymmetric(40, 136, 32)
    x = torch.randn(4096 if isa_level != "scalar" else 513, 136, dtype=torch.bfloat16)
    for activation in ("native", "int8"):
        y = packed.linear(x, activation=activation)
        assert relative_error(y, x.double().numpy() @ dense.T) <= BOUNDS[torch.bfloat16, activation]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_fused_layer_is_its_parts_side_by_side(dtype: torch.dtype):
    """Different N, bits, groups, zero kinds and column orders in one call."""
    q, q_dense = asymmetric(100, 128, 32, act_order=True)
    k, k_dense = asymmetric(17, 128, -1, bits=8)
    raw = torch.randint(0, 256, (24, 4 * 20), dtype=torch.uint8)
    raw.view(24, 4, 20)[..., :4] = torch.tensor([0x00, 0x20, 0x00, 0xA4], dtype=torch.uint8)  # finite halves
    v = int4.from_gguf(raw, ggml_type="Q4_1", shape=(24, 128))
    o, o_dense = asymmetric(5, 128, 64, act_order=True, seed=1)
    fused = int4.PackedWeight.concat([q, k, v, o])
    assert fused.shape == (146, 128)
    assert fused.nbytes == q.nbytes + k.nbytes + v.nbytes + o.nbytes
    assert [s.n for s in fused.segments] == [100, 17, 24, 5]
    dense = np.concatenate([q_dense, k_dense, v.dequantize().double().numpy(), o_dense])
    assert np.array_equal(fused.dequantize().double().numpy(), dense)
    x = torch.randn(4, 128).to(dtype)
    bias = torch.randn(146).to(dtype)
    expected = x.double().numpy() @ dense.T + bias.double().numpy()
    assert relative_error(fused.linear(x, bias), expected) <= BOUNDS[dtype, "native"]
    ids = torch.tensor([[0, 145], [100, 117], [116, 141]])
    assert np.array_equal(fused.rows(ids).double().numpy(), dense[ids.numpy()])
    for name in ("bits", "group_size"):
        with pytest.raises(int4.FormatError, match=f"{name}: expected one value for all segments"):
            getattr(fused, name)
    with pytest.raises(int4.FormatError, match="expected k=128 as in segment 0, got k=64"):
        int4.PackedWeight.concat([q, asymmetric(8, 64, 32)[0]])
    with pytest.raises(int4.FormatError, match="weights: expected at least one"):
        int4.PackedWeight.concat([])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act_order", [True, False])
def test_rows_are_exact_before_one_rounding(isa_level: str, dtype: torch.dtype, act_order: bool):
    packed, dense = asymmetric(100, 80, 32, act_order=act_order)
    exact = torch.from_numpy(dense).float()
    assert torch.equal(packed.dequantize(dtype), exact.to(dtype))
    for ids in (torch.tensor([99, 0, 99, 16]), torch.tensor(7), torch.zeros(2, 3, dtype=torch.int32)):
        rows = packed.rows(ids, dtype)
        assert rows.shape == (*ids.shape, 80)
        assert torch.equal(rows, exact[ids.long()].to(dtype))
    assert packed.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 80)


def test_smaller_activation_groups_hold_outliers():
    """One input a thousand times the others: only its own run of columns loses accuracy."""
    packed, dense = asymmetric(64, 256, -1)
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    x[:, 5] = 1000
    others = dense.copy()
    others[:, :32] = 0  # what the outlier's run contributes is left out of the comparison
    errors = {}
    for activation in ("int8", "int8_32"):
        difference = packed.linear(x, activation=activation) - packed.linear(x)
        errors[activation] = np.linalg.norm(difference.double()) / np.linalg.norm(
            x.double().numpy() @ others.T
        )
    assert errors["int8_32"] < 0.6 * errors["int8"]


def test_bad_calls_are_named():
    packed, _ = asymmetric(64, 128, 32)
    x = torch.zeros(1, 128)
    for call, message in (
        (lambda: packed.linear(x[:, :96]), r"x: expected .*\[..., 128\], got torch.float32 \[1, 96\]"),
        (lambda: packed.linear(x.double()), "x: expected .*, got torch.float64"),
        (lambda: packed.linear(torch.tensor(1.0)), r"x: expected .*, got torch.float32 \[\]"),
        (lambda: packed.linear(x, torch.zeros(63)), r"bias: expected torch.float32 \[64\], got .*\[63\]"),
        (
            lambda: packed.linear(x, torch.zeros(64).half()),
            "bias: expected torch.float32 .*, got torch.float16",
        ),
        (
            lambda: packed.linear(x, activation="int4"),
            "activation: expected native, int8, int8_32, got 'int4'",
        ),
        (lambda: packed.rows(torch.tensor([3, 64])), "ids: expected values from 0 to 63, got 3 to 64"),
        (lambda: packed.rows(torch.tensor([-1])), "ids: expected values from 0 to 63, got -1"),
        (
            lambda: packed.rows(torch.tensor([1.0])),
            "ids: expected an int64 or int32 tensor, got torch.float32",
        ),
        (lambda: packed.rows([1]), "ids: expected an int64 or int32 tensor, got list"),
        (lambda: packed.rows(torch.tensor([1]), torch.int8), "dtype: expected bfloat16, .*, got torch.int8"),
        (lambda: int4.PackedWeight(packed.data.int()), r"packed tensor: expected torch.uint8 \[bytes\], got"),
        (
            lambda: int4.PackedWeight(packed.data.view(2, -1)),
            r"packed tensor: expected torch.uint8 \[bytes\]",
        ),
        (lambda: int4.PackedWeight(packed.data[::2]), "packed tensor: expected contiguous bytes"),
        (lambda: int4.PackedWeight(b"x"), "packed tensor: expected torch.uint8 .*, got bytes"),
    ):
        with pytest.raises(int4.FormatError, match=message):
            call()


def test_format_errors_are_value_errors_and_one_line():
    assert issubclass(int4.FormatError, ValueError)
    assert issubclass(int4.FormatError, OmniError)
    with pytest.raises(int4.FormatError) as caught:
        int4.PackedWeight.from_bytes(b"short")
    assert "\n" not in str(caught.value)


KINDS = [{}, {"act_order": True}, {"symmetric": True}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_round_trip(kind: dict, bits: int):
    packed, dense = asymmetric(37, 80, 32, bits, **kind)
    blob = packed.to_bytes()
    assert isinstance(blob, bytes)
    assert len(blob) == packed.nbytes
    for source in (
        blob,
        bytearray(blob),
        memoryview(blob),
        torch.frombuffer(bytearray(blob), dtype=torch.uint8),
    ):
        back = int4.PackedWeight.from_bytes(source)
        assert back.to_bytes() == blob
        assert back.segments == packed.segments
        assert np.array_equal(back.dequantize().double().numpy(), dense)


def test_a_misaligned_tensor_is_moved():
    packed, dense = asymmetric(37, 80, 32, act_order=True)
    shifted = torch.empty(packed.nbytes + 1, dtype=torch.uint8)[1:]
    shifted.copy_(packed.data)
    weight = int4.PackedWeight(shifted)
    assert weight.data.data_ptr() != shifted.data_ptr()
    assert np.array_equal(weight.dequantize().double().numpy(), dense)


@pytest.mark.parametrize("section", ["header", "panels", "scales", "zeros", "permutation"])
def test_a_flipped_byte_is_found_and_named(section: str):
    packed, _ = asymmetric(37, 80, 32, act_order=True)
    segment = packed.segments[0]
    fused = int4.PackedWeight.concat([packed, packed])
    at = segment.nbytes  # the second segment
    if section == "header":
        at += 124  # its own checksum: everything else there is checked before
    else:
        at += segment.section(packed.data, section).data_ptr() - packed.data.data_ptr() + 1
    blob = bytearray(fused.to_bytes())
    blob[at] ^= 0x10
    with pytest.raises(int4.FormatError, match=f"segment 1: .*{section}"):
        int4.PackedWeight.from_bytes(blob)
    unchecked = int4.PackedWeight(torch.frombuffer(blob, dtype=torch.uint8))
    unchecked.validate(verify=False)
    with pytest.raises(int4.FormatError, match=f"segment 1: .*{section}"):
        unchecked.validate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "truncated"),
        (lambda b: b[:100], "truncated"),
        (lambda b: b[:0], "truncated|empty"),
        (lambda b: b + bytes(64), "segment 1"),
        (lambda b: b"GGUF" + b[4:], "segment 0"),
        (lambda b: b[:8] + b"\x02" + b[9:], "version 2"),
        (lambda b: b[:43] + b"\x01" + b[44:], "code kind 1"),
        (lambda b: b[:16] + (2**62).to_bytes(8, "little") + b[24:], "n=|panels"),
        (lambda b: b[:40] + b"\x03" + b[41:], "bits"),
        (lambda b: b[:45] + b"\x03" + b[46:], "reserved"),
    ],
)
def test_altered_bytes_are_refused(change, message: str):
    blob = asymmetric(37, 80, 32)[0].to_bytes()
    with pytest.raises(int4.FormatError, match=message):
        int4.PackedWeight.from_bytes(change(blob))


def test_a_file_is_mapped_not_read(tmp_path: Path):
    packed = int4.quantize(torch.randn(4096, 4096), group_size=128)
    path = tmp_path / "packed.safetensors"
    small, dense = asymmetric(37, 80, 32)
    safetensors.torch.save_file({"a.weight_packed": packed.data, "b.weight_packed": small.data}, path)
    del packed
    before = monitor.process_memory(pss=False)
    weights = int4.load_file(path)
    big = weights["a.weight_packed"]
    total = int(big.data.view(torch.int64).sum())  # touches every page
    after = monitor.process_memory(pss=False)
    assert total != 0
    assert after.rss_anon_bytes - before.rss_anon_bytes < big.nbytes / 4
    assert after.rss_file_bytes - before.rss_file_bytes > big.nbytes * 3 / 4
    assert big.shape == (4096, 4096)
    assert np.array_equal(weights["b.weight_packed"].dequantize().double().numpy(), dense)
    big.validate()


def test_a_file_of_something_else_is_named(tmp_path: Path):
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"norm": torch.ones(8)}, path)
    with pytest.raises(
        int4.FormatError, match=r"other.safetensors: norm: packed tensor: expected torch.uint8"
    ):
        int4.load_file(path)
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    with pytest.raises(int4.FormatError, match=r"other.safetensors: expected a safetensors file"):
        int4.load_file(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        int4.load_file(tmp_path / "missing.safetensors")


def test_repr_says_what_it_is():
    packed, _ = asymmetric(37, 80, 32)
    assert repr(packed) == f"PackedWeight([37, 80], 4 bits in groups of 32, {packed.nbytes} bytes)"
