"""onnxruntime-genai: the bar for decode with 4-bit weights and 8-bit activations (accuracy_level 4).

An arm's ``model`` is a folder made by ``peers convert onnxruntime-genai``. Option: ``threads``.
"""

from __future__ import annotations

from benchmarks.edge_harness.adapters.environment_adapter import EnvironmentAdapter

ADAPTER = EnvironmentAdapter(
    name="onnxruntime-genai",
    worker="benchmarks.edge_harness.adapters.onnxruntime_genai_worker",
    model_file="genai_config.json",
    options={"threads": int},
    measures_depth_of_batches=False,
)
