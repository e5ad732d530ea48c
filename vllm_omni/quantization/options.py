"""The options of ``cpu_int4``: the checkpoint's ``quantization_config`` and ``additional_config["omni"]``.

Both are hashed into vLLM's compile-cache key; the quantization object itself and the environment are not.
Whatever changes the graph is therefore an option here or nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import FormatError
from vllm_omni.layout_header import LAYOUT_VERSION

METHOD_NAME = "cpu_int4"
# vLLM's load formats that map safetensors files: packed weights are used where they lie in them.
LOAD_FORMATS = ("auto", "hf", "safetensors")
# Speculation without a draft model. Layers of a draft model would be built with the target's configuration.
SPECULATIVE_METHODS = ("ngram", "ngram_gpu", "suffix")
# Where our options live in vLLM's `additional_config`.
ADDITIONAL_CONFIG_KEY = "omni"

_CHECKPOINT_KEYS = frozenset({"quant_method", "layout_version", "weights_digest", "activation", "ignore"})
_ADDITIONAL_KEYS = frozenset({"activation"})
_REGEX_PREFIX = "re:"


@dataclass(frozen=True)
class Int4Options:
    """What a checkpoint's ``quantization_config`` says.

    ``ignore`` names modules that are stored unquantized: a full module name, its end after a dot
    (``"lm_head"`` matches ``"model.lm_head"``), or ``"re:"`` and a regular expression matched from the start.
    """

    layout_version: int
    weights_digest: str
    activation: str = "native"
    ignore: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Int4Options:
        """Check every key and value. Raises ``FormatError`` naming the key, what was expected and what
        came."""
        where = "quantization_config"
        method = config.get("quant_method")
        if method != METHOD_NAME:
            raise FormatError(f"{where}: quant_method is {method!r}, expected {METHOD_NAME!r}")
        _refuse_unknown(where, config, _CHECKPOINT_KEYS)
        version = config.get("layout_version")
        if type(version) is not int or version < 1:
            raise FormatError(f"{where}: layout_version is {version!r}, expected a positive integer")
        if version > LAYOUT_VERSION:
            raise FormatError(
                f"{where}: the weights have layout version {version}, this release reads up to "
                f"{LAYOUT_VERSION}: upgrade vllm-omni-edge, or import the model again"
            )
        digest = config.get("weights_digest")
        if not isinstance(digest, str) or not digest:
            raise FormatError(
                f"{where}: weights_digest is {digest!r}, expected the hex digest of the packed weights"
            )
        return cls(
            version,
            digest,
            _activation(where, config.get("activation", "native")),
            _ignore(where, config.get("ignore", [])),
        )

    def ignores(self, module: str) -> bool:
        """Whether ``module`` (its full name) is listed in ``ignore``."""
        return any(_matches(entry, module) for entry in self.ignore)


def activation_override(additional_config: object) -> str | None:
    """The activation that ``additional_config["omni"]`` asks for; ``None`` where it says nothing.

    Raises ``FormatError`` for an unknown key or value.
    """
    if not isinstance(additional_config, Mapping) or ADDITIONAL_CONFIG_KEY not in additional_config:
        return None
    options = additional_config[ADDITIONAL_CONFIG_KEY]
    where = f"additional_config[{ADDITIONAL_CONFIG_KEY!r}]"
    if not isinstance(options, Mapping):
        raise FormatError(f"{where} is {options!r}, expected an object")
    _refuse_unknown(where, options, _ADDITIONAL_KEYS)
    return _activation(where, options["activation"]) if "activation" in options else None


def refuse_load_format(load_format: str) -> None:
    """Raise ``FormatError`` where vLLM's ``load_format`` reads something else than safetensors files."""
    if load_format.lower() not in LOAD_FORMATS:
        raise FormatError(
            f"--load-format {load_format}: {METHOD_NAME} loads safetensors only, expected one of "
            f"{', '.join(LOAD_FORMATS)}"
        )


def refuse_speculative_method(method: str) -> None:
    """Raise ``FormatError`` where vLLM's speculative ``method`` brings a draft model."""
    if method not in SPECULATIVE_METHODS:
        raise FormatError(
            f"--speculative-config: method {method!r} brings a draft model, which {METHOD_NAME} does not "
            f"serve: expected one of {', '.join(SPECULATIVE_METHODS)}"
        )


def _refuse_unknown(where: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise FormatError(f"{where}: unknown key {unknown[0]!r}, expected one of {', '.join(sorted(known))}")


def _activation(where: str, value: object) -> str:
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise FormatError(f"{where}: activation is {value!r}, expected one of {', '.join(ACTIVATIONS)}")
    return value


def _ignore(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) and entry for entry in value):
        raise FormatError(f"{where}: ignore is {value!r}, expected a list of module names")
    for entry in value:
        if entry.startswith(_REGEX_PREFIX):
            try:
                re.compile(entry.removeprefix(_REGEX_PREFIX))
            except re.error as error:
                raise FormatError(
                    f"{where}: ignore entry {entry!r} is not a regular expression ({error})"
                ) from error
    return tuple(value)


def _matches(entry: str, module: str) -> bool:
    if entry.startswith(_REGEX_PREFIX):
        return re.match(entry.removeprefix(_REGEX_PREFIX), module) is not None
    return module == entry or module.endswith("." + entry)
