"""This project's arm: vLLM with the plugin, on a packed folder.

An arm's ``model`` is a model folder. Options: ``threads``, ``engine_args`` (for vLLM's ``EngineArgs``),
``ceiling`` (``false``: the read ceiling is not measured).
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters.base import check_options, required_model
from benchmarks.edge_harness.artifact.schema import Peer
from benchmarks.edge_harness.spec import Arm
from vllm_omni import __version__
from vllm_omni.errors import OmniError
from vllm_omni.plugin import vllm_version
from vllm_omni.quantization.packed_folder import PackedFolder, read_packed_folder
from vllm_omni.settings import PREFIX

REPOSITORY = Path(__file__).resolve().parents[3]
OPTIONS: dict[str, type] = {"threads": int, "engine_args": dict, "ceiling": bool}


@dataclass(frozen=True)
class VllmAdapter:
    """vLLM in the arm's own process, with the plugin or without it."""

    name: str
    stock: bool

    def unavailable(self, arm: Arm) -> str | None:
        check_options(arm, OPTIONS)
        model = Path(required_model(arm)).expanduser()
        if not vllm_version():
            return 'vLLM is not installed: see README, "Install"'
        if not (model / "config.json").is_file():
            return (
                f"{model.name}: no model folder there: `vllm-omni import` or `vllm-omni make-model` makes one"
            )
        return self._refuses(read_packed_folder(model))

    def _refuses(self, folder: PackedFolder) -> str | None:
        if self.stock and folder.is_cpu_int4:
            return (
                f"{folder.path.name}: stock vLLM cannot load cpu_int4: make a bf16 folder with "
                "`python -m benchmarks.edge_harness.adapters.bf16_checkpoint`"
            )
        return None

    def command(self, arm: Arm) -> list[str]:
        threads: int | None = arm.options.get("threads")
        engine_args: dict[str, Any] = arm.options.get("engine_args", {})
        workload = json.dumps(arm.workload.model_dump(exclude_none=True), separators=(",", ":"))
        return [
            *(sys.executable, "-m", "benchmarks.edge_harness.measure.arm"),
            *("--model", str(Path(required_model(arm)).expanduser().resolve())),
            *("--workload", workload),
            *(("--engine-args", json.dumps(engine_args)) if engine_args else ()),
            *(() if threads is None else ("--threads", str(threads))),
            *(() if arm.options.get("ceiling", True) else ("--no-ceiling",)),
            *(("--stock",) if self.stock else ()),
        ]

    def environment(self, arm: Arm) -> dict[str, str]:
        return {
            "PYTHONPATH": str(REPOSITORY),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            PREFIX + "DISABLE": "1" if self.stock else "0",
        }

    def peer(self, arm: Arm) -> Peer:
        """vLLM's version; ours too where the plugin acts."""
        version = vllm_version() or None
        if not self.stock:
            version = f"{__version__} on vLLM {version}"
        flags = [f"torch {_version('torch')}"]
        return Peer(name=self.name, version=version, commit=None, build_flags=flags)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise OmniError(f"{distribution} is not installed") from error


ADAPTER = VllmAdapter("ours", stock=False)
