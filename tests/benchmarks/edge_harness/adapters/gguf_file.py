"""A small GGUF file: a table, two matrices, a norm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize


def write_gguf(path: Path, *, head: bool = False, layers: str = "Q4_1") -> Path:
    writer = GGUFWriter(path, "llama")
    kinds = {"token_embd.weight": "Q8_0", "blk.0.attn_q.weight": layers, "blk.0.ffn_up.weight": layers}
    if head:
        kinds["output.weight"] = "Q6_K"
    for name, kind in kinds.items():
        wanted = GGMLQuantizationType[kind]
        if kind == "Q6_K":
            # 256 weights in 210 bytes.
            writer.add_tensor(name, np.zeros((2, 210), dtype=np.uint8), raw_dtype=wanted)
        else:
            data = np.ones((64, 32), dtype=np.float32)
            writer.add_tensor(name, quantize(data, wanted), raw_dtype=wanted)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
