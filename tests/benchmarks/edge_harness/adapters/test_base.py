"""Options of an arm are checked by name and type before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.edge_harness.adapters.base import check_options, model_path, required_model
from benchmarks.edge_harness.spec import Arm
from vllm_omni.errors import OmniError

KNOWN = {"threads": int, "repack": bool}


def arm(**fields: object) -> Arm:
    return Arm(tag="a", adapter="llama.cpp", **fields)


def test_known_options_pass():
    check_options(arm(options={"threads": 2, "repack": False}), KNOWN)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"thread": 2}, ("options.thread", "repack, threads")),
        ({"threads": "2"}, ("options.threads", "int", "'2'")),
        ({"threads": True}, ("options.threads", "int", "True")),
        ({"repack": 1}, ("options.repack", "bool", "1")),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], words: tuple[str, ...]):
    with pytest.raises(OmniError) as refused:
        check_options(arm(options=options), KNOWN)
    assert all(word in str(refused.value) for word in ("arm a", *words))


def test_a_model_is_required():
    assert required_model(arm(model="m.gguf")) == "m.gguf"
    assert model_path(arm(model="m.gguf")) == Path("m.gguf").absolute()
    assert model_path(arm(model="~/m.gguf")) == Path.home() / "m.gguf"
    with pytest.raises(OmniError, match="arm a: model: expected"):
        required_model(arm())
