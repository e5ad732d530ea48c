"""Specifications: what they may say, and the one line when they say something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.edge_harness.metrics import METRICS, metric
from benchmarks.edge_harness.spec import Spec, read_spec
from vllm_omni.errors import OmniError

ARM = {"tag": "a", "command": ["true"]}


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_json_and_toml_mean_the_same(tmp_path: Path) -> None:
    json_spec = read_spec(write(tmp_path / "s.json", {"arms": [ARM | {"env": {"A": "1"}}], "passes": 3}))
    toml = tmp_path / "s.toml"
    toml.write_text('passes = 3\n[[arms]]\ncommand = ["true"]\ntag = "a"\nenv = { A = "1" }\n')
    assert read_spec(toml) == json_spec
    assert read_spec(toml).sha256() == json_spec.sha256()


def test_the_digest_follows_the_meaning(tmp_path: Path) -> None:
    one = Spec.model_validate({"arms": [ARM]})
    assert one.sha256() == Spec.model_validate({"passes": 7, "arms": [ARM]}).sha256()
    assert one.sha256() != Spec.model_validate({"passes": 6, "arms": [ARM]}).sha256()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"arms": []}, "arms: "),
        ({}, "arms: Field required"),
        ({"arms": [ARM], "pases": 3}, "pases: Extra inputs are not permitted"),
        ({"arms": [{"tag": "a"}]}, "arms.0: expected one of command, adapter, unavailable; found none"),
        ({"arms": [ARM | {"adapter": "ours"}]}, "arms.0: expected one of command, adapter, unavailable"),
        ({"arms": [ARM, ARM]}, "the spec: expected every tag once; found a again"),
        ({"arms": [ARM | {"tag": "a b"}]}, "arms.0.tag: "),
        ({"arms": [ARM], "passes": 0}, "passes: "),
        ({"arms": [ARM], "timeout_s": float("inf")}, "timeout_s: Input should be a finite number"),
        ({"arms": [ARM], "settle_s": float("nan")}, "settle_s: Input should be"),
        ({"arms": [ARM | {"options": {"x": [float("inf")]}}]}, "the spec: expected finite numbers"),
        ({"arms": [ARM], "metrics": {"m": {"direction": "up"}}}, "metrics.m.direction: "),
    ],
)
def test_mistakes(tmp_path: Path, content: dict[str, object], complaint: str) -> None:
    path = write(tmp_path / "s.json", content)
    with pytest.raises(OmniError) as error:
        read_spec(path)
    assert f"{path}: {complaint}" in str(error.value)


def test_files_that_are_no_specification(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match="expected a readable spec"):
        read_spec(tmp_path / "none.json")
    torn = tmp_path / "torn.json"
    torn.write_text("{")
    with pytest.raises(OmniError, match="expected JSON"):
        read_spec(torn)
    torn_toml = tmp_path / "torn.toml"
    torn_toml.write_text("arms = ")
    with pytest.raises(OmniError, match="expected TOML"):
        read_spec(torn_toml)


def test_metrics_of_the_arms_own() -> None:
    declared = Spec.model_validate({"arms": [ARM], "metrics": {"mine": {"direction": "lower", "unit": "ms"}}})
    assert metric("mine", declared.declared_metrics()).direction == "lower"
    assert metric("unheard_of").direction == "neutral"
    assert metric("tg_tps").direction == "higher"


def test_the_table_names_each_metric_once_and_with_its_unit() -> None:
    units = {"_mb": "MB", "_s": "s", "_ms": "ms", "_tps": "tokens/s", "_gbps": "GB/s", "_nats": "nats"}
    for name, row in METRICS.items():
        assert name == row.name
        assert row.meaning
        for suffix, unit in units.items():
            if name.endswith(suffix):
                assert row.unit == unit, name
