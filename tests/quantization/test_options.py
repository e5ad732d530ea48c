from __future__ import annotations

from typing import Any

import pytest

from vllm_omni.errors import FormatError
from vllm_omni.quantization.options import (
    Int4Options,
    activation_override,
    refuse_load_format,
    refuse_speculative_method,
)

GOOD: dict[str, Any] = {"quant_method": "cpu_int4", "layout_version": 1, "weights_digest": "ab12"}


def test_defaults() -> None:
    assert Int4Options.from_dict(GOOD) == Int4Options(1, "ab12", "native", ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "awq"}, "quant_method is 'awq', expected 'cpu_int4'"),
        ({"layout_version": 2}, "layout version 2, this release reads up to 1"),
        ({"layout_version": "1"}, "layout_version is '1', expected a positive integer"),
        ({"layout_version": True}, "layout_version is True, expected a positive integer"),
        ({"weights_digest": ""}, "weights_digest is ''"),
        ({"group_size": 32}, "unknown key 'group_size'"),
        ({"activation": "int4"}, "activation is 'int4', expected one of native, int8, int8_32"),
        ({"ignore": "lm_head"}, "ignore is 'lm_head', expected a list"),
        ({"ignore": ["re:("]}, "ignore entry 're:(' is not a regular expression"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as refused:
        Int4Options.from_dict(GOOD | changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["layout_version", "weights_digest"])
def test_required_keys(key: str) -> None:
    with pytest.raises(FormatError, match=key):
        Int4Options.from_dict({name: value for name, value in GOOD.items() if name != key})


@pytest.mark.parametrize(
    ("entry", "module", "ignored"),
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "model.lm_head", True),
        ("lm_head", "model.lm_head_2", False),
        ("proj", "model.layers.0.q_proj", False),
        ("layers.0.mlp.down_proj", "model.layers.0.mlp.down_proj", True),
        ("layers.0.mlp.down_proj", "model.layers.10.mlp.down_proj", False),
        (r"re:.*\.mlp\.", "model.layers.0.mlp.down_proj", True),
        (r"re:mlp", "model.layers.0.mlp.down_proj", False),
    ],
)
def test_ignore_matches_whole_names_ends_and_expressions(entry: str, module: str, ignored: bool) -> None:
    assert Int4Options.from_dict(GOOD | {"ignore": [entry]}).ignores(module) is ignored


@pytest.mark.parametrize("name", ["auto", "hf", "safetensors", "SafeTensors"])
def test_load_formats_that_map_safetensors(name: str) -> None:
    refuse_load_format(name)


@pytest.mark.parametrize(
    "name",
    ["dummy", "pt", "npcache", "mistral", "fastsafetensors", "runai_streamer", "sharded_state", "tensorizer"],
)
def test_other_load_formats_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match=f"--load-format {name}: .* expected one of auto, hf, safetensors"):
        refuse_load_format(name)


@pytest.mark.parametrize("name", ["draft_model", "eagle3", "mtp", "medusa", "custom_class"])
def test_draft_models_are_refused(name: str) -> None:
    for method in ("ngram", "ngram_gpu", "suffix"):
        refuse_speculative_method(method)
    with pytest.raises(FormatError, match=f"method '{name}' brings a draft model"):
        refuse_speculative_method(name)


def test_additional_config() -> None:
    assert activation_override({}) is None
    assert activation_override({"other": 1}) is None
    assert activation_override({"omni": {}}) is None
    assert activation_override({"omni": {"activation": "int8_32"}}) == "int8_32"
    with pytest.raises(FormatError, match="unknown key 'acivation'"):
        activation_override({"omni": {"acivation": "int8"}})
    with pytest.raises(FormatError, match="expected an object"):
        activation_override({"omni": "int8"})
    with pytest.raises(FormatError, match="activation is 8"):
        activation_override({"omni": {"activation": 8}})
