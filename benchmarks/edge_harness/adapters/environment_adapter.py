"""What the adapters of engines with a Python environment of their own have in common."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters.base import check_options, model_path
from benchmarks.edge_harness.adapters.build import check_processor, read_mark
from benchmarks.edge_harness.adapters.convert import FACTS_FILE
from benchmarks.edge_harness.adapters.llama_cpp import REPOSITORY, workload_json
from benchmarks.edge_harness.adapters.recipes import Recipe, recipe
from benchmarks.edge_harness.artifact.schema import Peer
from benchmarks.edge_harness.provenance.model import model_identity
from benchmarks.edge_harness.spec import Arm


@dataclass(frozen=True)
class EnvironmentAdapter:
    """An engine whose worker runs with the Python of its own environment, on a converted model folder."""

    name: str
    worker: str
    """Module that is its program."""
    model_file: str
    """What a model folder of this engine has in it."""
    options: dict[str, type] = field(default_factory=dict)
    options_of_facts: dict[str, str] = field(default_factory=dict)
    """Option to the fact of the conversion that is its default."""
    tells_kv_dtype: bool = False
    """Its worker asks the engine for the type of the KV cache."""
    measures_depth: bool = True
    measures_depth_of_batches: bool = True

    @property
    def recipe(self) -> Recipe:
        return recipe(self.name)

    def unavailable(self, arm: Arm) -> str | None:
        check_options(arm, self.options)
        model = model_path(arm)
        if refusal := check_processor(self.recipe):
            return refusal
        if not self.recipe.is_built:
            return f"{self.name} is not built: {self.recipe.remedy}"
        if not (model / self.model_file).is_file():
            return (
                f"{model.name}: {self.name} reads a folder with {self.model_file}: make it with "
                f"`python -m benchmarks.edge_harness.adapters.peers convert {self.name} HF-FOLDER OUT`"
            )
        if arm.workload.depth and not self.measures_depth:
            return f"{self.name} takes a prompt whole: expected workload.depth 0, found {arm.workload.depth}"
        if arm.workload.depth and arm.workload.batch > 1 and not self.measures_depth_of_batches:
            return f"{self.name} takes the prompts of a batch whole: expected workload.depth 0 or batch 1"
        return None

    def command(self, arm: Arm) -> list[str]:
        model = model_path(arm)
        facts = self._facts(model) | {"peer": self.peer(arm).model_dump()}
        options: dict[str, Any] = {name: value for name, value in arm.options.items() if name != "threads"}
        for name, fact in self.options_of_facts.items():
            if facts.get(fact) is not None:
                options.setdefault(name, facts[fact])
        threads = arm.options.get("threads")
        return [
            *(str(self.recipe.python), "-m", self.worker, "--model", str(model)),
            *(() if threads is None else ("--threads", str(threads))),
            *("--workload", workload_json(arm.workload)),
            *("--options", json.dumps(options), "--facts", json.dumps(facts)),
        ]

    def _facts(self, model: Path) -> dict[str, Any]:
        """What the conversion wrote beside the model, and the identity of its files. All of it is of the
        file: what the engine makes of the weights, it does not tell."""
        identity = model_identity(model).model_dump()
        beside = model / FACTS_FILE
        facts: dict[str, Any] = json.loads(beside.read_text()) if beside.is_file() else {}
        stored = facts.pop("file_weights", {})
        head_bits = facts.get("ran", {}).get("head_bits")
        if facts.get("ran"):
            facts["ran"] |= {"source": "file"}
        listed = ", ".join(f"{name} {count}" for name, count in stored.items()) or "unknown"
        facts["notes"] = [f"kernels: not observed; weights of the file: {listed}"]
        if "kv_dtype" not in facts.get("ran", {}) and not self.tells_kv_dtype:
            facts["notes"].append(f"{self.name}: the type of its KV cache is not known")
        quantization = facts.get("quantization")
        return facts | {"model": identity | {"quantization": quantization, "head_bits": head_bits}}

    def environment(self, arm: Arm) -> dict[str, str]:
        return {"PYTHONPATH": str(REPOSITORY)}

    def peer(self, arm: Arm) -> Peer:
        packages = (read_mark(self.recipe) or {}).get("packages", {})
        return Peer(
            name=self.name,
            version=self.recipe.version,
            commit=None,
            # Nothing is compiled here: the wheels' versions are what identifies the build.
            build_flags=[f"{name}=={version}" for name, version in sorted(packages.items())],
        )
