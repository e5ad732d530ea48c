"""What a model folder of OpenVINO holds, as JSON on standard output.

Run by the converter's Python, as a file: ``python openvino_facts.py FOLDER``. The types are those of the
weights in the file; which kernel computes with them, the plugin decides when it compiles the model.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

# Where the head's weight is found by name: its own, or the table that it is tied to.
_HEADS = ("lm_head", "embed_tokens")


def facts(constants: list[tuple[str, str, list[int]]]) -> dict[str, Any]:
    """From (name, element type, shape) of every constant that holds a weight."""
    weights = [(name, kind, shape) for name, kind, shape in constants if _is_weight(name, shape)]
    stored = Counter(kind for _, kind, _ in weights)
    heads = [kind for word in _HEADS for name, kind, _ in weights if word in name]
    layers = Counter(kind for name, kind, _ in weights if not any(word in name for word in _HEADS))
    ran: dict[str, Any] = {}
    if layers:
        ran["weight_bits"] = _bits(layers.most_common(1)[0][0])
    if heads:
        ran["head_bits"] = _bits(heads[0])
    quantization = ", ".join(f"{count} x {kind}" for kind, count in layers.most_common()) or None
    found: dict[str, Any] = {"file_weights": dict(stored), "ran": ran, "quantization": quantization}
    # A weight in groups has their columns as its last dimension.
    groups = Counter(
        shape[-1]
        for name, _, shape in weights
        if len(shape) == 3 and not any(word in name for word in _HEADS)
    )
    if groups:
        found["group_size"] = groups.most_common(1)[0][0]
    own_head = any(_HEADS[0] in name for name, _, _ in weights)
    read = sum(
        math.prod(shape) * _bits(kind) // 8
        for name, kind, shape in constants
        if len(shape) >= 2 and not (own_head and _HEADS[1] in name) and math.prod(shape) > max(shape)
    )
    if read:
        found["weight_bytes_per_token"] = read
    return found


def _is_weight(name: str, shape: list[int]) -> bool:
    """A matrix (a norm is a vector whatever its shape says), and neither scales nor zero points."""
    wide = [length for length in shape if length > 1]
    return len(wide) >= 2 and shape[-1] > 1 and "zero_point" not in name and "scale" not in name


def _bits(kind: str) -> int:
    match = re.search(r"\d+", kind)
    if match is None:
        raise ValueError(f"element type {kind}: expected a number of bits in its name")
    return int(match[0])


def main(folder: Path) -> None:
    openvino = importlib.import_module("openvino")
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    constants = [
        (op.get_friendly_name(), op.get_element_type().get_type_name(), list(op.get_output_shape(0)))
        for op in model.get_ops()
        if op.get_type_name() == "Constant"
    ]
    print(json.dumps(facts(constants)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
