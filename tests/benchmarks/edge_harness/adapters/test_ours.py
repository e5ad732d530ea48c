"""Our own arm and stock vLLM's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.adapters.base import Adapter
from benchmarks.edge_harness.adapters.registry import adapter
from benchmarks.edge_harness.adapters.workload import Work
from benchmarks.edge_harness.measure import arm as program
from benchmarks.edge_harness.spec import Arm, read_spec
from tests.benchmarks.edge_harness.measure.test_step_bytes import folder
from vllm_omni.errors import OmniError

SPECS = Path(program.__file__).parents[1] / "specs"


def arm_of(model: Path | None, name: str = "ours", **options: Any) -> Arm:
    return Arm(tag="a", adapter=name, model=str(model) if model else None, options=options)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "tiny", ["model.layers.0.q_proj.weight"])


@pytest.mark.parametrize("name", ["ours", "vllm-stock"])
def test_the_program_understands_its_command_line(name: str, model: Path) -> None:
    found = adapter(name)
    assert isinstance(found, Adapter)
    arm = arm_of(model, name, threads=2, engine_args={"kv_cache_memory_bytes": 1}, ceiling=False)
    assert found.unavailable(arm) is None
    command = found.command(arm)
    module = command.index("-m") + 1
    assert command[module] == program.__name__
    options = program.parser().parse_args(command[module + 1 :])
    assert options.model == model
    assert options.stock is (name == "vllm-stock")
    assert options.threads == 2
    assert options.ceiling is False
    assert json.loads(options.engine_args) == {"kv_cache_memory_bytes": 1}
    assert Work.from_json(options.workload) == Work()


def test_the_plugin_is_off_in_one_of_them_only(model: Path) -> None:
    values = {
        name: adapter(name).environment(arm_of(model, name))["VLLM_OMNI_EDGE_DISABLE"]
        for name in ("ours", "vllm-stock")
    }
    assert values == {"ours": "0", "vllm-stock": "1"}
    assert adapter("ours").environment(arm_of(model))["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_identity() -> None:
    ours, stock = (adapter(name).peer(arm_of(None, name)) for name in ("ours", "vllm-stock"))
    assert stock.version is not None
    assert ours.version is not None
    assert ours.version.endswith(f"on vLLM {stock.version}")
    assert ours.build_flags[0].startswith("torch ")


def test_an_arm_that_cannot_run_says_why(tmp_path: Path) -> None:
    assert "no model folder there" in (adapter("ours").unavailable(arm_of(tmp_path / "none")) or "")
    with pytest.raises(OmniError, match="model: expected the path"):
        adapter("ours").unavailable(arm_of(None))
    with pytest.raises(OmniError, match=r"options\.kv: expected one of ceiling, engine_args, threads"):
        adapter("ours").unavailable(arm_of(tmp_path, kv=1))


def test_stock_vllm_needs_another_checkpoint(tmp_path: Path) -> None:
    from tests.quantization.tiny_checkpoint import TinyCheckpoint

    TinyCheckpoint().write(tmp_path / "packed")
    why = adapter("vllm-stock").unavailable(arm_of(tmp_path / "packed", "vllm-stock"))
    assert why is not None
    assert "bf16_checkpoint" in why
    assert adapter("ours").unavailable(arm_of(tmp_path / "packed")) is None


def test_the_memory_levers_name_what_is_not_there() -> None:
    spec = read_spec(SPECS / "memory-levers.json")
    missing = {arm.tag: arm.unavailable for arm in spec.arms if arm.unavailable}
    assert missing.keys() == {"rope-cap", "two-layouts", "release-after-load", "streamed-packing"}
    assert all(text.startswith("not implemented: ") for text in missing.values())
    running = [arm for arm in spec.arms if not arm.unavailable]
    budgets = [arm.options.get("engine_args", {}).get("kv_cache_memory_bytes") for arm in running]
    assert budgets == [None, 1 << 30]
    # All else is equal, and the context is filled to the same length.
    assert running[0].workload == running[1].workload
    assert running[0].workload.context_len == 1536
