"""OpenVINO GenAI: the bar for prefill of 4-bit weights.

An arm's ``model`` is a folder made by ``peers convert openvino-genai``. Options: ``threads``,
``dynamic_quantization_group_size`` (the engine's own property; by default the group of the converted weights,
which is what makes it fast) and ``kv_cache_precision`` (``u8``, ``f16``, ``bf16``, ``f32``; by default the
plugin's choice). A repeated prompt would be answered from a cache: prefix caching is off.
"""

from __future__ import annotations

from benchmarks.edge_harness.adapters.environment_adapter import EnvironmentAdapter

ADAPTER = EnvironmentAdapter(
    name="openvino-genai",
    worker="benchmarks.edge_harness.adapters.openvino_genai_worker",
    model_file="openvino_model.xml",
    options={"threads": int, "dynamic_quantization_group_size": int, "kv_cache_precision": str},
    options_of_facts={"dynamic_quantization_group_size": "group_size"},
    tells_kv_dtype=True,
    measures_depth=False,
)
