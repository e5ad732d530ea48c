"""What an ONNX model folder of onnxruntime-genai holds, as JSON on standard output.

Run by the converter's Python, as a file: ``python onnx_facts.py FOLDER``.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def facts(nodes: list[tuple[str, str, dict[str, int]]]) -> dict[str, Any]:
    """From (operator, name, integer attributes) of every node of the graph."""
    kernels: Counter[str] = Counter()
    bits: Counter[int] = Counter()
    head: tuple[int, str] | None = None
    for operator, name, attributes in nodes:
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
        kernels[label] += 1
        if "lm_head" in name:
            head = (width, label)
    found: dict[str, Any] = {"kernels": dict(kernels), "ran": {}, "quantization": None}
    if bits:
        found["ran"]["weight_bits"] = bits.most_common(1)[0][0]
        found["quantization"] = " + ".join(label for label in kernels if label != "MatMul")
    if head is not None and head[0]:
        found["ran"] |= {"head_bits": head[0], "head_kernel": head[1]}
    return found


def main(folder: Path) -> None:
    onnx = importlib.import_module("onnx")
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    nodes = [(node.op_type, node.name, {one.name: one.i for one in node.attribute}) for node in graph.node]
    print(json.dumps(facts(nodes)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
