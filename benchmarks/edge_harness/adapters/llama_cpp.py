"""llama.cpp, from the source distribution of llama-cpp-python: the bar for a single stream on CPUs.

An arm's ``model`` is a GGUF file. Options: ``threads`` (default: one per CPU that the arm is pinned to),
``batch_tokens`` and ``ubatch_tokens`` (prefill is computed ``ubatch_tokens`` at a time), ``flash_attention``
(``auto``, ``on``, ``off``), ``repack`` (``false``: weights stay as in the file; the engine itself rearranges
what it has kernels for).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters.base import check_options, model_path
from benchmarks.edge_harness.adapters.build import read_mark
from benchmarks.edge_harness.adapters.gguf_facts import gguf_facts, layer_type, matrix_names
from benchmarks.edge_harness.adapters.recipes import Recipe, recipe
from benchmarks.edge_harness.artifact.schema import Peer
from benchmarks.edge_harness.spec import Arm, Workload

REPOSITORY = Path(__file__).resolve().parents[3]
OPTIONS: dict[str, type] = {
    "threads": int,
    "batch_tokens": int,
    "ubatch_tokens": int,
    "flash_attention": str,
    "repack": bool,
}
_WORKER = "benchmarks.edge_harness.adapters.llama_cpp_worker"


def workload_json(workload: Workload) -> str:
    """The workload as a worker's command line carries it."""
    return json.dumps(workload.model_dump(exclude_none=True), separators=(",", ":"))


def peer_of(built: Recipe) -> Peer:
    """Identity of a build; the version alone where nothing is built."""
    return Peer(
        name=built.name,
        version=built.version,
        commit=built.commit,
        build_flags=list((read_mark(built) or {}).get("build_flags", built.flags)),
    )


def threads_of(arm: Arm) -> int | None:
    """The option; ``None`` leaves it to the worker, which runs where the arm is pinned."""
    threads: int | None = arm.options.get("threads")
    return threads


@dataclass(frozen=True)
class GgmlAdapter:
    """Both engines of the family. ``library_variable`` tells its binding where the library is."""

    name: str
    library_variable: str
    library: str
    """What the variable names, relative to the build folder: the library, or the folder that it lies in."""

    batches_with_flash_attention: bool = True
    repack_types: frozenset[str] = frozenset()
    """Where most weights are of one of these types, ``repack`` is asked for by default."""

    @property
    def recipe(self) -> Recipe:
        return recipe(self.name)

    def unavailable(self, arm: Arm) -> str | None:
        check_options(arm, OPTIONS)
        model = model_path(arm)
        if not self.recipe.is_built:
            return f"{self.name} is not built: {self.recipe.remedy}"
        if not model.is_file():
            return f"{model.name}: {self.name} reads one GGUF file, found none there"
        off = arm.options.get("flash_attention") == "off"
        if arm.workload.batch > 1 and not (self.batches_with_flash_attention or off):
            return (
                f"{self.name} {self.recipe.version} aborts in its flash attention with several sequences; "
                'set options.flash_attention to "off"'
            )
        return None

    def command(self, arm: Arm) -> list[str]:
        model = model_path(arm)
        options: dict[str, Any] = {name: value for name, value in arm.options.items() if name != "threads"}
        if self.repacks_by_default(model):
            options.setdefault("repack", True)
        facts = gguf_facts(model) | {"peer": self.peer(arm).model_dump()}
        if self.recipe.no_commit:
            facts["no_commit"] = self.recipe.no_commit
        threads = threads_of(arm)
        return [
            *(sys.executable, "-m", _WORKER, "--engine", self.name),
            *("--source", str(self.recipe.source), "--model", str(model)),
            *("--matrices", json.dumps(matrix_names(model))),
            *("--file-types", json.dumps(facts["file_tensor_types"])),
            *(() if threads is None else ("--threads", str(threads))),
            *("--workload", workload_json(arm.workload)),
            *("--options", json.dumps(options), "--facts", json.dumps(facts)),
        ]

    def repacks_by_default(self, model: Path) -> bool:
        return layer_type(model) in self.repack_types

    def environment(self, arm: Arm) -> dict[str, str]:
        library = self.recipe.build_folder / self.library
        return {"PYTHONPATH": str(REPOSITORY), self.library_variable: str(library)}

    def peer(self, arm: Arm) -> Peer:
        return peer_of(self.recipe)


ADAPTER = GgmlAdapter(name="llama.cpp", library_variable="LLAMA_CPP_LIB_PATH", library="bin")
