from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T
from safetensors.torch import load_file
from transformers import AutoConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor, load_gguf_checkpoint

from vllm_omni import int4
from vllm_omni.checkpoints import atomic_folder, gguf_import
from vllm_omni.checkpoints.gguf_import import (
    FLOAT_FILE,
    INDEX_FILE,
    PACKED_FILE,
    import_gguf,
    undo_interleave,
)
from vllm_omni.checkpoints.import_record import RECORD_NAME, read_record
from vllm_omni.checkpoints.packed_file import packed_tensors, validate_packed_file
from vllm_omni.checkpoints.safetensors_file import read_header
from vllm_omni.errors import FormatError, OmniError
from vllm_omni.layout_header import PACKED_SUFFIX

MIXED = {
    "attn_q.weight": T.Q4_1,
    "attn_k.weight": T.Q8_0,
    "attn_v.weight": T.Q4_0,
    "ffn_down.weight": T.Q4_1,
    "token_embd.weight": T.Q8_0,
    "ffn_norm.weight": T.F16,
}


def dense_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of an imported folder as float32, by its Hugging Face name."""
    weights = {name: value.float() for name, value in load_file(folder / FLOAT_FILE).items()}
    for entry, data in packed_tensors(folder / PACKED_FILE):
        weights[entry.name.removesuffix("_packed")] = int4.PackedWeight(data).dequantize()
    return weights


def reading(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("heads", [1, 3, 9])
@pytest.mark.parametrize("trailing", [(), (18,)])
def test_undo_interleave_is_transformers_own_reversal(heads: int, trailing: tuple[int, ...]) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (heads * 64, *trailing), dtype=np.uint8)
    expected = LlamaTensorProcessor()._reverse_permute_weights(rows, heads, heads)
    assert np.array_equal(undo_interleave(rows, heads), expected)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"types": MIXED},
        {"types": MIXED, "tied": False},
        {"tied": False, "types": {"output.weight": T.F16, "ffn_down.weight": T.BF16}},
        {"types": {"token_embd.weight": T.F32}},
        {"biases": True, "types": {"attn_q.weight": T.Q8_0}},
        {"mlp_biases": True},
        {"heads": 1, "kv_heads": 1, "hidden": 32, "inner": 32, "layers": 1},
    ],
    ids=["q4_0", "mixed", "mixed untied", "float head", "float table", "biases", "mlp biases", "smallest"],
)
def test_weights_equal_transformers_own_reading(
    write_tiny: Callable[..., Path], tmp_path: Path, fields: dict[str, Any]
) -> None:
    """Names, row order and values, against transformers' GGUF loader: every value equal."""
    path = write_tiny(**fields)
    import_gguf(path, tmp_path / "model")
    ours = dense_weights(tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model")
    del config.quantization_config
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        assert torch.equal(ours[name], expected.float()), name


def test_weights_and_biases_return_to_the_order_they_came_from(tmp_path: Path, tiny: Any) -> None:
    """The writer interleaved q and k of a known model; dequantized rows are those of the known order."""
    tiny.biases, tiny.mlp_biases, tiny.types = True, True, MIXED
    import_gguf(tiny.write(tmp_path / "x.gguf"), tmp_path / "model")
    ours, names = (
        dense_weights(tmp_path / "model"),
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, tiny.layers),
    )
    sources = tiny.weights()
    assert len(ours) == len(sources)
    for name, value in ours.items():
        module, suffix = name.rsplit(".", 1)
        source = f"{names.get_name(module)}.{suffix}"
        kind = tiny.type_of(source, sources[source])
        expected = gguf.quants.dequantize(gguf.quants.quantize(sources[source], kind), kind)
        assert np.array_equal(value.numpy(), expected), name


@pytest.mark.model
def test_the_real_model_is_imported_without_loss(smollm2_gguf: Path, smollm2_folder: Path) -> None:
    tensors = {t.name: t for t in gguf.GGUFReader(smollm2_gguf).tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    reverse = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    compared = 0
    for name, value in dense_weights(smollm2_folder).items():
        source = names.get_name(name.removesuffix(".weight")) + ".weight"
        tensor = tensors.pop(source)
        expected = reverse.process(gguf.quants.dequantize(tensor.data, tensor.tensor_type), source).weights
        assert np.array_equal(value.numpy(), expected), source
        compared += 1
    assert compared == 272
    assert not tensors


@pytest.mark.model
def test_every_packed_tensor_of_the_real_model_is_aligned_and_valid(smollm2_folder: Path) -> None:
    entries = validate_packed_file(smollm2_folder / PACKED_FILE)
    assert len(entries) == 211
    assert {item.entry.start % 64 for item in entries} == {0}
    assert {item.entry.nbytes % 64 for item in entries} == {0}
    assert {(item.bits, item.group_size) for item in entries} == {(4, 32), (8, 32)}
    assert sum(item.entry.nbytes for item in entries) == pytest.approx(96.5e6, rel=0.01)


def assert_fused_layers_lie_together(folder: Path, layers: int) -> None:
    entries = {entry.name: entry for entry in read_header(folder / PACKED_FILE).entries}
    for layer in range(layers):
        for group in (
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            ("mlp.gate_proj", "mlp.up_proj"),
        ):
            members = [entries[f"model.layers.{layer}.{name}{PACKED_SUFFIX}"] for name in group]
            for before, after in pairwise(members):
                assert before.end == after.start
            # One view over all of them is the fused layer.
            path = folder / PACKED_FILE
            data = path.read_bytes()[members[0].start : members[-1].end]
            fused = int4.PackedWeight.from_bytes(data)
            assert len(fused.segments) == len(group)


def test_fused_layers_lie_together(write_tiny: Callable[..., Path], tmp_path: Path) -> None:
    import_gguf(write_tiny(types=MIXED), tmp_path / "model")
    assert_fused_layers_lie_together(tmp_path / "model", layers=2)


def test_folder_contents(write_tiny: Callable[..., Path], tmp_path: Path) -> None:
    path = write_tiny(types=MIXED)
    calls: list[tuple[int, int]] = []
    summary = import_gguf(path, tmp_path / "model", lambda done, total: calls.append((done, total)))
    folder = tmp_path / "model"
    assert {p.name for p in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        PACKED_FILE,
        FLOAT_FILE,
        INDEX_FILE,
        RECORD_NAME,
    }
    assert folder.stat().st_mode & 0o777 == 0o777 & ~current_umask()
    digest = hashlib.sha256((folder / PACKED_FILE).read_bytes()).hexdigest()
    assert reading(folder, "config.json")["quantization_config"] == {
        "quant_method": "cpu_int4",
        "layout_version": 1,
        "weights_digest": digest,
        "activation": "native",
        "ignore": [],
    }
    index = reading(folder, INDEX_FILE)
    assert index["weight_map"] == {
        entry.name: name for name in (PACKED_FILE, FLOAT_FILE) for entry in read_header(folder / name).entries
    }
    assert index["metadata"]["total_size"] == sum(
        entry.nbytes for name in (PACKED_FILE, FLOAT_FILE) for entry in read_header(folder / name).entries
    )
    record = read_record(folder)
    assert record.is_of(path)
    assert record.weights_sha256 == digest
    assert summary.tensors == 20
    assert summary.tensor_types == {"Q8_0": 3, "Q4_1": 4, "Q4_0": 8, "F16": 2, "F32": 3}
    assert summary.source_bytes == path.stat().st_size
    assert summary.folder_bytes == sum(record.files.values())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1] == len({total for _, total in calls}) * calls[-1][1]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_floats_keep_every_bit(write_tiny: Callable[..., Path], tmp_path: Path) -> None:
    fine = (1 + np.arange(64) * 2.0**-10).astype(np.float32)  # exact in fp16, not in bf16
    finest = (1 + np.arange(64) * 2.0**-20).astype(np.float32)  # exact in neither
    types = {
        "blk.0.attn_norm.weight": T.F16,
        "blk.1.attn_norm.weight": T.F32,
        "blk.1.ffn_norm.weight": T.BF16,
    }
    extra = {"blk.0.attn_norm.weight": fine, "blk.1.attn_norm.weight": finest}
    import_gguf(write_tiny(types=types, extra=extra), tmp_path / "model")
    found = load_file(tmp_path / "model" / FLOAT_FILE)
    kinds = {name.removeprefix("model.layers."): tensor.dtype for name, tensor in found.items()}
    assert kinds["0.input_layernorm.weight"] == torch.float16
    assert kinds["1.input_layernorm.weight"] == torch.float32
    assert kinds["0.post_attention_layernorm.weight"] == torch.bfloat16  # F32 in the file, exact in bf16
    assert kinds["1.post_attention_layernorm.weight"] == torch.bfloat16
    assert np.array_equal(found["model.layers.0.input_layernorm.weight"].float().numpy(), fine)
    assert np.array_equal(found["model.layers.1.input_layernorm.weight"].numpy(), finest)


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"tied": False, "types": {"output.weight": T.F16}}, ["lm_head"]),
        ({"types": {"token_embd.weight": T.BF16}}, ["model.embed_tokens", "lm_head"]),
        ({"types": {"blk.1.ffn_down.weight": T.F16}}, ["model.layers.1.mlp.down_proj"]),
    ],
)
def test_what_is_not_packed_is_ignored_by_name(
    write_tiny: Callable[..., Path], tmp_path: Path, fields: dict[str, Any], ignored: list[str]
) -> None:
    import_gguf(write_tiny(**fields), tmp_path / "model")
    assert reading(tmp_path / "model", "config.json")["quantization_config"]["ignore"] == ignored


def bias(module: str, n: int) -> dict[str, np.ndarray]:
    return {f"{module}.bias": np.ones(n, np.float32)}


MATRICES = ("token_embd", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"drop": {"blk.1.ffn_up.weight"}}, "'blk.1.ffn_up.weight' is missing"),
    ({"drop": {"output_norm.weight"}}, "'output_norm.weight' is missing"),
    ({"extra": {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}}, "'blk.0.attn_q_norm.weight' has no"),
    ({"extra": {"blk.2.attn_norm.weight": np.ones(64, np.float32)}}, "'blk.2.attn_norm.weight' has no place"),
    ({"metadata": {"llama.feed_forward_length": 128}}, r"has shape \[96, 64\]: expected \[128, 64\]"),
    ({"types": {"blk.0.attn_v.weight": T.F16}}, "'blk.0.attn_v.weight' has type F16 beside 'blk.0.attn_q"),
    ({"types": {"blk.1.ffn_up.weight": T.F32}}, "'blk.1.ffn_up.weight' has type F32 beside 'blk.1.ffn_gate"),
    ({"biases": True, "drop": {"blk.1.attn_k.bias"}}, "'blk.1.attn_k.bias' is missing for a llama model"),
    ({"biases": True, "drop": {"blk.1.attn_output.bias"}}, "'blk.1.attn_output.bias' is missing"),
    ({"biases": True, "drop": {f"blk.1.attn_{x}.bias" for x in "qkv"}}, "'blk.1.attn_q.bias' is missing"),
    ({"mlp_biases": True, "drop": {"blk.1.ffn_down.bias"}}, "'blk.1.ffn_down.bias' is missing"),
    ({"mlp_biases": True, "drop": {"blk.0.ffn_down.bias"}}, "'blk.0.ffn_gate.bias' has no place in a llama"),
    (
        {"extra": bias("blk.0.attn_output", 64)},
        "'blk.0.attn_output.bias' has no place in .*: expected a bias in",
    ),
    ({"extra": bias("blk.1.attn_q", 64)}, "'blk.1.attn_q.bias' has no place"),
    ({"extra": bias("blk.1.ffn_up", 96) | bias("blk.1.ffn_gate", 96)}, "'blk.1.ffn_gate.bias' has no place"),
    (
        {"extra": bias("blk.1.ffn_norm", 64)},
        "'blk.1.ffn_norm.bias' has no place in .*: expected no bias here",
    ),
    ({"extra": bias("output_norm", 64)}, "'output_norm.bias' has no place"),
    ({"tied": False, "extra": bias("output", 263)}, "'output.bias' has no place"),
    ({"metadata": {"tokenizer.ggml.eot_token_id": "<|im_end|>"}}, "eot_token_id' is '<|im_end|>': expected"),
    ({"types": {"attn_norm.weight": T.Q8_0}}, "vector 'blk.0.attn_norm.weight' has type Q8_0"),
    ({"types": {f"{name}.weight": T.F16 for name in MATRICES}}, "no quantized tensor"),
    ({"architecture": "starcoder2"}, "architecture 'starcoder2' is not supported; supported: .*llama"),
    ({"pre": "chameleon"}, "pre-tokenizer 'chameleon'"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_a_refused_source_leaves_nothing(
    write_tiny: Callable[..., Path], tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    path = write_tiny(**fields)
    with pytest.raises(FormatError, match=message) as caught:
        import_gguf(path, tmp_path / "model")
    assert str(path) in str(caught.value)
    assert os.listdir(tmp_path) == [path.name]


def test_a_scale_that_is_not_finite_is_named_and_leaves_nothing(
    write_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_tiny()
    tensor = {t.name: t for t in gguf.GGUFReader(path, "r+").tensors}["blk.1.ffn_up.weight"]
    tensor.data[3, :2] = np.array([np.inf], np.float16).view(np.uint8)
    del tensor
    with pytest.raises(
        FormatError, match=r"tiny\.gguf: tensor 'blk\.1\.ffn_up\.weight' of type Q4_0: .*finite"
    ):
        import_gguf(path, tmp_path / "model")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "dangling link"])
def test_an_existing_target_is_left_alone(write_tiny: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    path, target = write_tiny(), tmp_path / "model"
    if kind == "file":
        target.write_text("mine")
    elif kind == "dangling link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir()
        if kind == "folder":
            (target / "config.json").write_text("mine")
    with pytest.raises(OmniError, match="model: exists already"):
        import_gguf(path, target)
    assert sorted(os.listdir(tmp_path)) == ["model", "tiny.gguf"]
    if kind == "folder":
        assert (target / "config.json").read_text() == "mine"


def test_a_target_that_appears_meanwhile_is_left_alone(
    write_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    def appear(done: int, total: int) -> None:
        if done == total:
            (tmp_path / "model").mkdir(exist_ok=True)
            (tmp_path / "model" / "theirs").touch()

    with pytest.raises(OmniError, match="exists already"):
        import_gguf(write_tiny(), tmp_path / "model", appear)
    assert sorted(os.listdir(tmp_path)) == ["model", "tiny.gguf"]
    assert os.listdir(tmp_path / "model") == ["theirs"]


def test_a_target_without_a_parent(write_tiny: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="no folder"):
        import_gguf(write_tiny(), tmp_path / "absent" / "model")
    assert os.listdir(tmp_path) == ["tiny.gguf"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 256 KiB, or None where mounting is not allowed."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        mounted.rmdir()
        yield None
        return
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_too_little_space_is_told_before_anything_is_written(
    write_tiny: Callable[..., Path], tmp_path: Path, small_disk: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = small_disk or tmp_path / "where"
    if small_disk is None:
        where.mkdir()
        usage = gguf_import.shutil.disk_usage(tmp_path)._replace(free=262144)
        monkeypatch.setattr(gguf_import.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OmniError, match=r"not enough disk space: needs [\d,]+ bytes, [\d,]+ are free"):
        import_gguf(write_tiny(hidden=256, inner=512), where / "model")
    assert os.listdir(where) == []


def test_a_disk_that_fills_up_leaves_nothing(
    write_tiny: Callable[..., Path], tmp_path: Path, small_disk: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The check beforehand sees room, as when another process takes it afterwards.
    usage = gguf_import.shutil.disk_usage(tmp_path)._replace(free=1 << 40)
    monkeypatch.setattr(gguf_import.shutil, "disk_usage", lambda path: usage)
    where = small_disk or tmp_path / "where"
    if small_disk is None:
        where.mkdir()

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(atomic_folder.os, "fsync", full)
    with pytest.raises(OmniError, match="model: the disk is full: needs"):
        import_gguf(write_tiny(hidden=256, inner=512), where / "model")
    assert os.listdir(where) == []


INTERRUPTED = """
import os, signal, sys
from vllm_omni.checkpoints import gguf_import
from vllm_omni.cli.main import main

pack, packed, number = gguf_import.pack_tensor, [], int(sys.argv[3])
def interrupted(*args):
    packed.append(args)
    if len(packed) == 5:
        assert [name for name in os.listdir(os.path.dirname(sys.argv[2])) if "partial" in name]
        os.kill(os.getpid(), number)
    return pack(*args)
gguf_import.pack_tensor = interrupted
sys.argv = ["vllm-omni", "import", *sys.argv[1:3]]
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_nothing(
    write_tiny: Callable[..., Path], tmp_path: Path, number: int, code: int
) -> None:
    path = write_tiny()
    command = [sys.executable, "-c", INTERRUPTED, str(path), str(tmp_path / "model"), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == [path.name]


def test_what_a_killed_command_left_is_named_by_the_next(
    write_tiny: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny()
    command = [
        sys.executable,
        "-c",
        INTERRUPTED,
        str(path),
        str(tmp_path / "model"),
        str(int(signal.SIGKILL)),
    ]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".model.partial-*")
    import_gguf(path, tmp_path / "model")
    assert caplog.messages == [f"{left}: left by a process that was killed: it can be removed"]


def test_interruption_inside_the_library_call(
    write_tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_folder, "_flush", interrupt)
    with pytest.raises(KeyboardInterrupt):
        import_gguf(write_tiny(), tmp_path / "model")
    assert os.listdir(tmp_path) == ["tiny.gguf"]
