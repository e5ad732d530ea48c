"""What is in the environment before vLLM is imported into a measuring process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_omni.cli.in_process import IN_PROCESS, prepare
from vllm_omni.errors import OmniError
from vllm_omni.settings import PREFIX

DISABLE = PREFIX + "DISABLE"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test sets is gone after it."""
    for name in (IN_PROCESS, DISABLE, "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "0")


def test_one_process_with_our_plugin() -> None:
    prepare()
    assert os.environ[IN_PROCESS] == "0"
    assert os.environ[DISABLE] == "0"
    assert os.environ["VLLM_CACHE_ROOT"] == "0"


def test_stock_vllm_in_its_own_layout(tmp_path: Path) -> None:
    prepare(in_process=False, stock=True, cache_root=tmp_path)
    assert os.environ[IN_PROCESS] == "1"
    assert os.environ[DISABLE] == "1"
    assert os.environ["VLLM_CACHE_ROOT"] == str(tmp_path)
    # Kernels that are compiled outside vLLM's folder stay within the run's as well.
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))


def test_a_plugin_that_is_off_is_not_measured_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE, "1")
    with pytest.raises(OmniError, match="DISABLE=1: expected 0, or --stock"):
        prepare()
    prepare(stock=True)
