"""The extension module's face: what the stub file declares is what there is."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import vllm_omni
from vllm_omni import _rust

STUB = ast.parse((Path(vllm_omni.__file__).parent / "_rust.pyi").read_text())


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = node
    return found


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_the_stub_names_everything_there_is():
    assert set(declared(STUB.body)) == public(dir(_rust))


def test_the_stub_names_every_attribute():
    for name, node in declared(STUB.body).items():
        if isinstance(node, ast.ClassDef) and not node.bases:
            assert public(list(declared(node.body))) == public(dir(getattr(_rust, name))), name


def test_the_stub_names_every_parameter():
    for name, node in declared(STUB.body).items():
        if isinstance(node, ast.FunctionDef):
            signature = getattr(_rust, name).__text_signature__
            function = ast.parse(f"def f{signature}: ...").body[0]
            assert isinstance(function, ast.FunctionDef)
            for kind in ("args", "kwonlyargs"):
                want = [argument.arg for argument in getattr(node.args, kind)]
                assert [argument.arg for argument in getattr(function.args, kind)] == want, name


def test_the_level_in_use_limits_the_kernels():
    before = _rust.isa_level()
    try:
        _rust.set_isa_level("scalar")
        assert _rust.isa_level() == "scalar"
        assert {k.isa for k in _rust.kernels() if k.available} == {"scalar"}
        for dtype in ("bf16", "f16", "f32"):
            for activation in (0, 32, 128):
                for bits in (4, 8):
                    assert _rust.select_kernel(dtype, activation, bits).startswith("scalar-")
    finally:
        _rust.set_isa_level(before)
    assert _rust.isa_level() == before


def test_the_selected_kernel_is_the_first_available_of_its_form():
    kernels = _rust.kernels()
    assert len({k.name for k in kernels}) == len(kernels)
    for activation, forms in ((0, {"bf16", "f32", "i24"}), (32, {"int8"}), (128, {"int8"})):
        for bits in (4, 8):
            chosen = next(k for k in kernels if k.name == _rust.select_kernel("bf16", activation, bits))
            alike = [k for k in kernels if k.available and (k.form, k.bits) == (chosen.form, bits)]
            assert chosen.form in forms
            assert chosen.name == next(k.name for k in alike if k.min_rows <= 1)
            assert _rust.select_kernel("bf16", activation, bits, rows=4096) == alike[0].name


def test_tiles_are_for_many_rows_and_for_machines_that_have_them():
    tiles = [k for k in _rust.kernels() if k.isa.startswith("amx")]
    assert sorted(k.name for k in tiles) == ["amx-bf16q4", "amx-bf16q8", "amx-int8q4", "amx-int8q8"]
    assert all(k.min_rows == 8 for k in tiles)
    assert all(k.min_rows == 1 for k in _rust.kernels() if not k.isa.startswith("amx"))
    for kernel in tiles:
        activation = 128 if kernel.form == "int8" else 0
        chosen = [_rust.select_kernel("bf16", activation, kernel.bits, rows) for rows in (1, 7, 8, 4096)]
        assert kernel.name not in chosen[:2]
        assert [name == kernel.name for name in chosen[2:]] == [kernel.available] * 2


def test_a_level_that_the_machine_lacks_is_refused():
    before = _rust.isa_level()
    if any(k.available for k in _rust.kernels() if k.isa.startswith("amx")):
        _rust.set_isa_level("amx")
        assert _rust.isa_level() == "amx"
        _rust.set_isa_level(before)
    else:
        with pytest.raises(ValueError, match="ISA level amx is not available on this machine"):
            _rust.set_isa_level("amx")
    assert _rust.isa_level() == before


def test_avx_vnni_is_a_level_of_its_own():
    rows = [k for k in _rust.kernels() if k.isa == "avx_vnni"]
    assert sorted(k.name for k in rows) == [
        "avx_vnni-i24q4",
        "avx_vnni-i24q8",
        "avx_vnni-int8q4",
        "avx_vnni-int8q8",
    ]
    before = _rust.isa_level()
    if not all(k.available for k in rows):
        with pytest.raises(ValueError, match="ISA level avx_vnni is not available on this machine"):
            _rust.set_isa_level("avx_vnni")
        return
    _rust.set_isa_level("avx_vnni")
    try:
        assert _rust.isa_level() == "avx_vnni"
        for bits in (4, 8):
            assert _rust.select_kernel("bf16", 0, bits) == f"avx_vnni-i24q{bits}"
            assert _rust.select_kernel("f16", 0, bits) == f"avx_vnni-i24q{bits}"
            assert _rust.select_kernel("f32", 0, bits) == f"avx2-f32q{bits}"
            assert _rust.select_kernel("bf16", 128, bits) == f"avx_vnni-int8q{bits}"
    finally:
        _rust.set_isa_level(before)


@pytest.mark.parametrize("level", ["avx1024", "AVX2", ""])
def test_an_unknown_level_is_refused(level: str):
    with pytest.raises(ValueError, match="expected scalar, avx2, avx_vnni, avx512 or amx"):
        _rust.set_isa_level(level)


def test_bad_arguments_are_named():
    for call, message in (
        (lambda: _rust.select_kernel("f64", 0, 4), "dtype: expected bf16, f16 or f32, got"),
        (lambda: _rust.select_kernel("f32", 64, 4), "activation: expected 0 .*, got 64"),
        (lambda: _rust.select_kernel("f32", 0, 5), "bits: expected 4 or 8, got 5"),
        (lambda: _rust.packed_bytes(8, 8, 4, 32, "f32", "none", False), "scale_type: expected f16 or bf16"),
        (
            lambda: _rust.packed_bytes(8, 8, 4, 32, "f16", "u4", False),
            "zero_kind: expected none, u8 or offset",
        ),
        (lambda: _rust.register_torch_ops(str(Path(torch.__file__).parent / "lib"), "x::y"), "x::y"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for n, k, group_size, message in (
        (0, 8, 32, "n"),
        (8, 0, 32, "k"),
        (8, 8, 12, "group_size"),
        (8, 8, -2, "group_size"),
        (2**60, 2**60, 32, f"{2**60}"),
    ):
        with pytest.raises(_rust.LayoutError, match=message):
            _rust.packed_bytes(n, k, 4, group_size, "f16", "none", False)


def test_packing_refuses_what_does_not_fit_and_leaves_the_buffer_alone():
    shape = {"n": 16, "k": 32, "bits": 4, "group_size": 32, "scale_type": "f16"}
    good = {
        "out": np.full(_rust.packed_bytes(16, 32, 4, 32, "f16", "none", False), 7, np.uint8),
        "codes": np.zeros((16, 32), np.uint8),
        "scales": np.zeros((16, 1), np.uint16),
        "zeros": None,
        "offsets": None,
        "permutation": None,
    }
    read_only = good["out"].copy()
    read_only.flags.writeable = False
    for change, error, message in (
        ({"codes": np.full((16, 32), 16, np.uint8)}, _rust.LayoutError, "16"),
        ({"codes": np.zeros((16, 31), np.uint8)}, _rust.LayoutError, "codes"),
        ({"codes": np.zeros((32, 16), np.uint8).T}, ValueError, "codes: expected a C-contiguous buffer"),
        ({"scales": np.zeros((16, 2), np.uint16)}, _rust.LayoutError, "scales"),
        (
            {"scales": np.zeros((16, 1), np.float16)},
            BufferError,
            "buffer contents are not compatible with u16",
        ),
        ({"out": read_only}, ValueError, "out: expected a writable buffer"),
        ({"out": good["out"][:-1]}, _rust.LayoutError, "output"),
        ({"codes": good["out"][: 16 * 32]}, ValueError, "out: .* memory that codes shares"),
        ({"scales": good["out"][:32].view(np.uint16)}, ValueError, "out: .* memory that scales shares"),
        ({"zeros": np.zeros((16, 1), np.uint8), "offsets": np.zeros((16, 1), np.uint16)}, ValueError, "both"),
    ):
        with pytest.raises(error, match=message):
            _rust.pack_into(**{**good, **change}, **shape)
        assert bool((good["out"] == 7).all())
    _rust.pack_into(**good, **shape)
    (segment,) = _rust.segments(good["out"], True)
    assert (segment.n, segment.k, segment.group_size, segment.offset) == (16, 32, 32, 0)
    assert segment.nbytes == good["out"].size
