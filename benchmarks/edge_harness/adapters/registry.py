"""Every adapter by the name that a spec uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from benchmarks.edge_harness.adapters.base import Adapter
from vllm_omni.errors import OmniError

# Name to the file that ends in ``ADAPTER = …``.
_FILES = {
    "ours": "ours",
    "vllm-stock": "vllm_stock",
    "vllm-zentorch": "vllm_zentorch",
    "llama.cpp": "llama_cpp",
    "ik_llama.cpp": "ik_llama_cpp",
    "onnxruntime-genai": "onnxruntime_genai",
    "openvino-genai": "openvino_genai",
}


class _Adapters(Mapping[str, Adapter]):
    """Imports an adapter's file when it is asked for."""

    def __getitem__(self, name: str) -> Adapter:
        module = import_module(f"benchmarks.edge_harness.adapters.{_FILES[name]}")
        found: Adapter = module.ADAPTER
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)


ADAPTERS: Mapping[str, Adapter] = _Adapters()


def adapter(name: str) -> Adapter:
    """The adapter called ``name``. Raises :class:`OmniError` listing the names."""
    if name not in _FILES:
        raise OmniError(f"adapter {name}: expected one of {', '.join(_FILES)}")
    return ADAPTERS[name]
