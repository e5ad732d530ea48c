"""vLLM with AMD's plugin zentorch, in an environment of its own; for AMD Zen processors only.

An arm's ``model`` is a Hugging Face folder; its fast path takes symmetric compressed-tensors checkpoints
(pack-quantized). Options: ``threads``. The program is the one that measures stock vLLM: our plugin is not
installed in that environment, and is told to do nothing besides.
"""

from __future__ import annotations

from benchmarks.edge_harness.adapters.base import check_options, model_path
from benchmarks.edge_harness.adapters.build import check_processor
from benchmarks.edge_harness.adapters.environment_adapter import EnvironmentAdapter
from benchmarks.edge_harness.adapters.llama_cpp import workload_json
from benchmarks.edge_harness.spec import Arm


class ZentorchAdapter(EnvironmentAdapter):
    """Differs from the others in its program, which is vLLM's own."""

    def unavailable(self, arm: Arm) -> str | None:
        check_options(arm, self.options)
        model = model_path(arm)
        if refusal := check_processor(self.recipe):
            return refusal
        if not self.recipe.is_built:
            return f"{self.name} is not built: {self.recipe.remedy}"
        if not (model / self.model_file).is_file():
            return f"{model.name}: {self.name} reads a model folder, found no {self.model_file} there"
        return None

    def command(self, arm: Arm) -> list[str]:
        model = model_path(arm)
        threads = arm.options.get("threads")
        return [
            *(str(self.recipe.python), "-m", self.worker, "--stock", "--model", str(model)),
            *(() if threads is None else ("--threads", str(threads))),
            *("--workload", workload_json(arm.workload)),
        ]


ADAPTER = ZentorchAdapter(
    name="vllm-zentorch",
    worker="benchmarks.edge_harness.measure.arm",
    model_file="config.json",
    options={"threads": int},
)
