"""OpenVINO GenAI: the bar for prefill of 4-bit weights.

An arm's ``model`` is a folder made by ``peers convert openvino-genai``. Options: ``threads``, and
``dynamic_quantization_group_size`` (the engine's own property; 128 is what makes it fast on symmetric weights
of that group). A repeated prompt would be answered from a cache: prefix caching is off.
"""

from __future__ import annotations

from benchmarks.edge_harness.adapters.environment_adapter import EnvironmentAdapter

ADAPTER = EnvironmentAdapter(
    name="openvino-genai",
    worker="benchmarks.edge_harness.adapters.openvino_genai_worker",
    model_file="openvino_model.xml",
    options={"threads": int, "dynamic_quantization_group_size": int},
    measures_depth=False,
)
