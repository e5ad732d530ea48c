"""The second start loads the compiled model that the first one saved, and answers as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.engine import engine
from tests.quantization.test_cpu_int4 import BOUNDS, errors
from tests.quantization.tiny_checkpoint import TinyCheckpoint
from vllm_omni import compile_key
from vllm_omni.patches import saved_model
from vllm_omni.plugin import register_general


@pytest.mark.engine
def test_a_second_start_loads_what_the_first_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import envs
    from vllm.compilation.counter import compilation_counter

    register_general()
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    reference = TinyCheckpoint().write(tmp_path / "model")
    seen = []

    def start(**options: Any) -> tuple[int, int]:
        """Models compiled, and loaded compiled, by one start. Its answers are checked at all positions."""
        torch._dynamo.reset()
        before = compilation_counter.clone()
        settings: dict[str, Any] = BOUNDS | {"enforce_eager": False} | options
        with engine(tmp_path / "model", dtype="float32", **settings) as llm:
            seen.append(max(errors(llm, reference)))
        after = compilation_counter
        return (
            after.num_aot_compiles - before.num_aot_compiles,
            after.num_aot_artifacts_loaded - before.num_aot_artifacts_loaded,
        )

    assert start() == (1, 0)
    assert start() == (0, 1)
    # Of another activation the operators' arguments differ: not the same compiled model.
    assert start(additional_config={"omni": {"activation": "int8"}}) == (1, 0)
    # Nor is one that was compiled for other instruction sets, or another number of threads.
    with monkeypatch.context() as other_machine:
        other_machine.setitem(envs.environment_variables, compile_key.FACTOR, lambda: "another machine")
        assert start() == (1, 0)
    assert seen[0] == seen[1] == seen[3] < 2e-3
    assert seen[2] > seen[0]
    saved_model.PATCH.undo()
    try:
        assert start() == (1, 0), "vLLM loads saved models itself: the patch can go"
    finally:
        saved_model.PATCH.apply()
