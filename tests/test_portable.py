"""The portable kernels and the plain-torch packed layout against the native library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.formats import checkpoint_writer as writer
from vllm_omni import _rust, int4, layout, ops, portable
from vllm_omni.formats import compressed_tensors, ggml
from vllm_omni.formats.affine import AffineCodes

NO_BIAS = torch.empty(0)


def affine(
    n: int, k: int, group_size: int, bits: int, kind: str, dtype: torch.dtype = torch.float16
) -> AffineCodes:
    if kind == "offset":
        raw = torch.randint(0, 256, (n, k // 32, 20), dtype=torch.uint8)
        raw[..., :4] = (torch.randn(n, k // 32, 2) * 0.05).half().view(torch.uint8)
        return ggml.unpack(raw.flatten(1), ggml_type="Q4_1", shape=(n, k))
    codes = writer.Codes.random(
        n, k, group_size, bits=bits, symmetric=kind == "symmetric", act_order=kind == "act-order"
    )
    written = writer.compressed(codes, zero_points=kind != "symmetric")
    written["weight_scale"] = written["weight_scale"].to(dtype)
    return compressed_tensors.unpack(
        written["weight_packed"],
        written["weight_scale"],
        written["weight_shape"],
        written.get("weight_zero_point"),
        writer.g_idx(codes) if kind == "act-order" else None,
        group_size=group_size,
        bits=bits,
    )


CASES = [
    (1, 8, 8, 4, "asymmetric"),
    (8, 80, 32, 4, "act-order"),
    (100, 96, 32, 8, "asymmetric"),
    (33, 4304, 32, 4, "asymmetric"),
    (17, 75, -1, 8, "symmetric"),
    (1000, 64, 64, 4, "symmetric"),
    (48, 520, 40, 8, "act-order"),
    (40, 128, 32, 4, "offset"),
    (20, 300, 264, 4, "asymmetric"),
]


@pytest.mark.parametrize(("n", "k", "group_size", "bits", "kind"), CASES)
def test_packed_bytes_are_the_native_librarys(n: int, k: int, group_size: int, bits: int, kind: str):
    weight = affine(n, k, group_size, bits, kind)
    segment = layout.segment_of(weight)
    size = _rust.packed_bytes(n, k, bits, group_size, segment.scale_type, segment.zero_kind, segment.permuted)
    assert segment.nbytes == size
    packed = torch.full((size,), 0xEE, dtype=torch.uint8)
    layout.pack_into(packed, weight)
    assert packed.numpy().tobytes() == int4.pack(weight).to_bytes()


@pytest.mark.parametrize(("n", "k", "group_size", "bits", "kind"), CASES)
def test_unpacking_gives_back_what_was_packed(n: int, k: int, group_size: int, bits: int, kind: str):
    weight = affine(n, k, group_size, bits, kind, torch.bfloat16)
    packed = int4.pack(weight)
    (segment,) = layout.verify(packed.data)
    assert segment == packed.segments[0]
    assert torch.equal(layout.codes_of(packed.data, segment, slice(0, segment.panels)), weight.codes)
    assert torch.equal(layout.scales_of(packed.data, segment), weight.scales)
    for got, want in (
        (layout.zeros_of(packed.data, segment), weight.zeros),
        (layout.offsets_of(packed.data, segment), weight.offsets),
    ):
        assert (got is None) == (want is None)
        assert want is None or torch.equal(got, want)
    order = torch.arange(k) if weight.permutation is None else weight.permutation.long()
    assert torch.equal(layout.permutation_of(packed.data, segment), order)


def test_both_read_the_same_headers():
    parts = [
        int4.pack(affine(*case)) for case in ((8, 80, 32, 4, "act-order"), (100, 80, -1, 8, "symmetric"))
    ]
    fused = int4.PackedWeight.concat(parts)
    native = _rust.segments(fused.data.numpy(), True)
    names = ("n", "k", "bits", "group_size", "scale_type", "zero_kind", "permuted", "nbytes")
    assert len(native) == len(fused.segments) == 2
    for mine, theirs in zip(fused.segments, native, strict=True):
        assert [getattr(mine, name) for name in names] == [getattr(theirs, name) for name in names]
        assert mine.offset_bytes == theirs.offset


def test_every_header_byte_is_judged_alike():
    """Flip each bit of a header: the two readers agree on whether it still parses and verifies."""
    blob = bytearray(int4.pack(affine(20, 40, 8, 4, "act-order")).to_bytes())
    for bit in range(layout.HEADER_BYTES * 8):
        blob[bit // 8] ^= 1 << bit % 8
        data = torch.frombuffer(blob, dtype=torch.uint8)
        for verify, portable_reader in ((False, layout.parse), (True, layout.verify)):
            verdicts = []
            for reader in (portable_reader, lambda d, v=verify: _rust.segments(d.numpy(), v)):
                try:
                    reader(data)
                    verdicts.append(True)
                except ValueError:
                    verdicts.append(False)
            assert verdicts[0] == verdicts[1], (bit, verify)
            assert not (verify and verdicts[0]), bit
        blob[bit // 8] ^= 1 << bit % 8


def ulps_apart(a: torch.Tensor, b: torch.Tensor) -> int:
    """The largest number of representable 16-bit values between elements of ``a`` and ``b``."""

    def ordered(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(torch.int16).int()
        return torch.where(bits < 0, -32768 - bits, bits)

    return int((ordered(a) - ordered(b)).abs().max())


def agree(portable_y: torch.Tensor, native_y: torch.Tensor) -> None:
    """fp32 to 1e-5 of the largest result; 16-bit types to one rounding of that."""
    assert portable_y.shape == native_y.shape
    assert portable_y.dtype == native_y.dtype
    wide = native_y.float()
    scale = float(wide.abs().max())
    if native_y.dtype == torch.float32:
        torch.testing.assert_close(portable_y, native_y, rtol=1e-5, atol=1e-5 * scale)
        return
    # Values that cancel to nearly nothing differ by the fp32 error, which may be many of their own steps.
    large = wide.abs() > 1e-2 * scale
    assert ulps_apart(portable_y[large], native_y[large]) <= 1
    step = torch.finfo(native_y.dtype).eps
    torch.testing.assert_close(portable_y.float(), wide, rtol=step, atol=1e-2 * step * scale)


@pytest.mark.parametrize(("n", "k", "group_size", "bits", "kind"), CASES)
@pytest.mark.parametrize("activation", [0, 32, 128])
def test_linear_agrees(n: int, k: int, group_size: int, bits: int, kind: str, activation: int):
    torch.manual_seed(k)
    data = int4.pack(affine(n, k, group_size, bits, kind)).data
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for m in (1, 5):
            for bias in (NO_BIAS, torch.randn(n).to(dtype)):
                x = torch.randn(m, k).to(dtype)
                native_y = torch.ops.vllm_omni.int4_linear(x, data, bias, n, k, activation)
                agree(portable.linear(x, data, bias, n, k, activation), native_y)


@pytest.mark.parametrize(("n", "k", "group_size", "bits", "kind"), CASES)
def test_rows_are_equal(n: int, k: int, group_size: int, bits: int, kind: str):
    data = int4.pack(affine(n, k, group_size, bits, kind)).data
    ids = torch.arange(n).flip(0).repeat(2).view(2, n)
    for dtype in portable.ROW_DTYPES:
        native_y = torch.ops.vllm_omni.int4_embedding(ids, data, n, k, dtype)
        assert torch.equal(portable.embedding(ids, data, n, k, dtype), native_y)


def test_int8_activations_at_the_edges_agree():
    """Zeros, values too small to scale, and values that are not finite."""
    data = int4.pack(affine(16, 64, 32, 4, "asymmetric")).data
    x = torch.zeros(5, 64)
    x[1, 3] = 1e-40
    x[2, :32] = 2.0**-121
    x[3, 40] = float("inf")
    x[4, 2] = float("nan")
    y = portable.linear(x, data, NO_BIAS, 16, 64, 128)
    native_y = torch.ops.vllm_omni.int4_linear(x, data, NO_BIAS, 16, 64, 128)
    assert torch.equal(y[:3], torch.zeros(3, 16))
    assert torch.equal(native_y[:3], torch.zeros(3, 16))
    assert bool(y[3:].isnan().all())
    assert bool(native_y[3:].isnan().all())


def test_a_fused_weight_agrees():
    parts = [int4.pack(affine(*case)) for case in ((8, 128, 32, 4, "act-order"), (40, 128, 32, 4, "offset"))]
    fused = int4.PackedWeight.concat(parts)
    x = torch.randn(2, 3, 128)
    agree(portable.linear(x, fused.data, NO_BIAS, 48, 128, 0), fused.linear(x))


WITHOUT_NATIVE = """
import json, sys, torch
from vllm_omni import int4, ops
assert not ops.status().native, ops.status()
folder = sys.argv[1]
inputs = torch.load(f"{folder}/inputs.pt")
weight = int4.from_gptq(**inputs["gptq"], group_size=32, sym=False)
rows = weight.rows(inputs["ids"])
results = {"packed": weight.data, "rows": rows}
for dtype in (torch.float32, torch.bfloat16):
    for activation in ("native", "int8"):
        results[f"{dtype} {activation}"] = weight.linear(inputs["x"].to(dtype), activation=activation)
torch.save(results, f"{folder}/results.pt")
loaded = sorted(name for name in sys.modules if name.startswith("vllm_omni"))
print(json.dumps(loaded))
"""


def test_a_process_without_the_native_library_computes_the_same(tmp_path: Path):
    codes = writer.Codes.random(100, 96, 32, act_order=True)
    x = torch.randn(5, 96)
    ids = torch.tensor([0, 99, 50])
    written = {**writer.gptq(codes), "g_idx": writer.g_idx(codes)}
    torch.save({"gptq": written, "x": x, "ids": ids}, tmp_path / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NATIVE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"VLLM_OMNI_EDGE_NATIVE": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "vllm_omni._rust" not in json.loads(done.stdout)
    results = torch.load(tmp_path / "results.pt")
    assert ops.status().native
    weight = int4.from_gptq(**written, group_size=32, sym=False)
    assert torch.equal(results["packed"], weight.data)
    assert torch.equal(results["rows"], weight.rows(ids))
    for dtype in (torch.float32, torch.bfloat16):
        for activation in ("native", "int8"):
            native_y = weight.linear(x.to(dtype), activation=activation)
            agree(results[f"{dtype} {activation}"], native_y)
