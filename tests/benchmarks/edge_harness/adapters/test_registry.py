"""Every adapter that a spec can name exists, and obeys the interface."""

from __future__ import annotations

import pytest

from benchmarks.edge_harness.adapters.base import Adapter
from benchmarks.edge_harness.adapters.registry import ADAPTERS, adapter
from vllm_omni.errors import OmniError

NAMES = (
    *("ours", "vllm-stock", "vllm-zentorch", "llama.cpp", "ik_llama.cpp"),
    *("onnxruntime-genai", "openvino-genai"),
)


def test_the_names_are_these():
    assert tuple(ADAPTERS) == NAMES
    assert len(ADAPTERS) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_has_every_member_and_knows_its_name(name: str):
    found = adapter(name)
    assert isinstance(found, Adapter)
    assert found.name == name


def test_another_name_is_refused_with_the_list():
    with pytest.raises(OmniError, match=r"adapter llama: expected one of ours, .*openvino-genai"):
        adapter("llama")
