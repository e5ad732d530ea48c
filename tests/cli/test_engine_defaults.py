from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.quantization.tiny_checkpoint import HEAD_DIM, KV_HEADS, LAYERS, TinyCheckpoint
from vllm_omni.cli import engine_defaults as defaults
from vllm_omni.cli.engine_defaults import ModelShape
from vllm_omni.cli.machine import Machine
from vllm_omni.errors import OmniError
from vllm_omni.quantization.packed_folder import PackedFolder, read_packed_folder

GIB = 1 << 30


def machine(available: int) -> Machine:
    return Machine((0, 1), "all", available, "free")


# 64 KiB of KV cache per token, 4 GiB of weights.
MODEL = ModelShape("big", 32768, 64 << 10, 1 << 20, 4 * GIB)


def test_bounds_where_the_user_said_nothing() -> None:
    chosen = defaults.engine_defaults(MODEL, machine(64 * GIB), {}).arguments
    assert chosen == {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": defaults.kv_bytes_of(MODEL, 2 * 4096),
        "max_model_len": 4096,
    }


def test_a_short_model_bounds_the_context() -> None:
    model = ModelShape("short", 1024, 1024, 0, 0)
    assert defaults.engine_defaults(model, machine(64 * GIB), {}).arguments["max_model_len"] == 1024


def test_what_the_user_gave_is_left_alone() -> None:
    given: dict[str, int | None] = {"max_model_len": 8192, "max_num_seqs": 1024, "kv_cache_memory_bytes": GIB}
    assert defaults.engine_defaults(MODEL, machine(64 * GIB), given).arguments == {
        "max_num_batched_tokens": 1024
    }


def test_a_given_context_sizes_the_cache() -> None:
    chosen = defaults.engine_defaults(MODEL, machine(64 * GIB), {"max_model_len": 16384}).arguments
    assert chosen["kv_cache_memory_bytes"] == defaults.kv_bytes_of(MODEL, 2 * 16384)


def test_a_given_cache_bounds_the_context() -> None:
    given = {"kv_cache_memory_bytes": defaults.kv_bytes_of(MODEL, 1024)}
    chosen = defaults.engine_defaults(MODEL, machine(64 * GIB), given).arguments
    assert chosen["max_model_len"] == 1024
    with pytest.raises(OmniError, match="too small"):
        defaults.engine_defaults(MODEL, machine(64 * GIB), {"kv_cache_memory_bytes": 1 << 20})


def test_little_memory_takes_fewer_then_shorter_contexts() -> None:
    base = MODEL.weight_bytes + MODEL.mapped_bytes + defaults.RUNTIME_BYTES
    one = defaults.engine_defaults(MODEL, machine(base + defaults.kv_bytes_of(MODEL, 4096)), {}).arguments
    assert (one["max_model_len"], one["kv_cache_memory_bytes"]) == (4096, defaults.kv_bytes_of(MODEL, 4096))
    short = defaults.engine_defaults(MODEL, machine(base + defaults.kv_bytes_of(MODEL, 1024)), {}).arguments
    assert (short["max_model_len"], short["kv_cache_memory_bytes"]) == (
        1024,
        defaults.kv_bytes_of(MODEL, 1024),
    )


def test_too_big_a_model_is_refused_with_numbers() -> None:
    with pytest.raises(OmniError) as refused:
        defaults.engine_defaults(MODEL, machine(3 * GIB), {})
    line = str(refused.value)
    assert line.startswith("big is too big for the memory: weights 4.00 GiB")
    assert "3.00 GiB are free" in line
    assert len(re.findall(r"\d+\.\d\d GiB", line)) == 5
    assert "\n" not in line


def test_a_given_context_is_not_shortened_but_refused() -> None:
    base = MODEL.weight_bytes + MODEL.mapped_bytes + defaults.RUNTIME_BYTES
    with pytest.raises(OmniError, match="too big"):
        defaults.engine_defaults(MODEL, machine(base + GIB), {"max_model_len": 32768})


def test_a_model_of_unknown_dimensions() -> None:
    chosen = defaults.engine_defaults(None, machine(2 * GIB), {}).arguments
    assert chosen["kv_cache_memory_bytes"] == GIB // 2
    assert chosen["max_model_len"] == -1


def test_dimensions_of_a_folder(tmp_path: Path) -> None:
    TinyCheckpoint().write(tmp_path / "model")
    folder = read_packed_folder(tmp_path / "model")
    shape = ModelShape.read(folder)
    assert shape.kv_bytes_per_token == 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
    assert shape.context_tokens == 512
    assert shape.mapped_bytes == folder.packed_bytes
    arguments = defaults.engine_arguments(tmp_path / "model")
    assert arguments["max_model_len"] == 512


def test_dimensions_of_a_nested_configuration() -> None:
    text = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
        "max_position_embeddings": 128,
        "dtype": "bfloat16",
    }
    shape = ModelShape.read(PackedFolder(Path("m"), {"text_config": text}))
    assert (shape.kv_bytes_per_token, shape.context_tokens) == (2 * 2 * 4 * 16 * 2, 128)


def test_threads_are_set_once_and_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_CPU_SIM_MULTI_NUMA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    assert "VLLM_CPU_NUM_OF_RESERVED_CPU=0" in defaults.prepare_environment(machine(GIB))
    monkeypatch.delenv("VLLM_CPU_NUM_OF_RESERVED_CPU")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "")
    assert "2 threads on cores 0-1" in defaults.prepare_environment(machine(GIB))
    import os

    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert "VLLM_CPU_OMP_THREADS_BIND=0-1" in defaults.prepare_environment(machine(GIB))


def test_vllms_variable_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert defaults.with_environment({}) == {"kv_cache_memory_bytes": 2 * GIB}
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    assert defaults.with_environment({"max_num_seqs": 3}) == {"max_num_seqs": 3}
