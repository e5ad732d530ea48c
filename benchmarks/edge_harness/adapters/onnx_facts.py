"""What an ONNX model folder of onnxruntime-genai holds, as JSON on standard output.

Run by the converter's Python, as a file: ``python onnx_facts.py FOLDER``.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def facts(
    nodes: list[tuple[str, str, dict[str, int], list[str]]],
    initializer_bytes: dict[str, int],
    kv_dtypes: set[str],
) -> dict[str, Any]:
    """From (operator, name, integer attributes, inputs) of every node of the graph, the size of every
    initializer, and the types of the inputs that hold past keys and values."""
    weights: Counter[str] = Counter()
    read: set[str] = set()
    bits: Counter[int] = Counter()
    head: tuple[int, str] | None = None
    for operator, name, attributes, inputs in nodes:
        if operator == "MatMulNBits":
            # The operator's own default; a node may leave it out.
            width = attributes.get("bits", 4)
            label = (
                f"MatMulNBits bits={width} block={attributes.get('block_size')} "
                f"accuracy_level={attributes.get('accuracy_level', 0)}"
            )
            bits[width] += 1
        elif operator == "MatMul":
            width, label = 0, "MatMul"
        else:
            continue
        weights[label] += 1
        read |= {name for name in inputs if name in initializer_bytes}
        if "lm_head" in name:
            head = (width, label)
    found: dict[str, Any] = {"file_weights": dict(weights), "ran": {}, "quantization": None}
    if read:
        found["weight_bytes_per_token"] = sum(initializer_bytes[name] for name in read)
    if len(kv_dtypes) == 1:
        found["ran"]["kv_dtype"] = next(iter(kv_dtypes))
    if bits:
        found["ran"]["weight_bits"] = bits.most_common(1)[0][0]
        found["quantization"] = " + ".join(label for label in weights if label != "MatMul")
    if head is not None and head[0]:
        found["ran"]["head_bits"] = head[0]
    return found


def main(folder: Path) -> None:
    onnx = importlib.import_module("onnx")
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    nodes = [
        (node.op_type, node.name, {one.name: one.i for one in node.attribute}, list(node.input))
        for node in graph.node
    ]
    sizes = {one.name: _bytes(onnx, one.data_type, one.dims) for one in graph.initializer}
    kinds = {
        str(onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type))
        for one in graph.input
        if one.name.startswith("past_key_values.")
    }
    print(json.dumps(facts(nodes, sizes, kinds)))


def _bytes(onnx: Any, data_type: int, dims: Any) -> int:
    """Of a tensor whose data lies outside the graph; MatMulNBits keeps its weights in whole bytes."""
    return int(math.prod(dims) * onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
