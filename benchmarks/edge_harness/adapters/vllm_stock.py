"""Stock vLLM: the same program as ``ours`` with the plugin off, on a checkpoint that vLLM loads by itself."""

from __future__ import annotations

from benchmarks.edge_harness.adapters.ours import VllmAdapter

ADAPTER = VllmAdapter("vllm-stock", stock=True)
