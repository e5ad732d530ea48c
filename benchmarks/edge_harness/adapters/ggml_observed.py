"""What llama.cpp and its fork tell of themselves while they run: their log, and the loaded tensors.

A model's file says which types were stored, not what they became: both engines may rearrange weights at load,
and what computes with them follows from that. ``kernels`` of a record is what was seen here, or is left out.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# ggml's levels; a line is continued under 5.
_WARNING, _ERROR = 3, 4
_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_REPACKED = re.compile(r"repack: repack tensor (\S+) with (\S+)")
_REPACKED_COUNT = re.compile(r"=+ Repacked (\d+) tensors")
# As ggml and as this project write the types of a KV cache.
_DTYPES = {"f16": "float16", "f32": "float32", "bf16": "bfloat16"}
HEADS = ("output.weight", "token_embd.weight")


@dataclass
class Log:
    """What the engine says: warnings and errors go to standard error, facts about the weights are kept."""

    buffers: list[str] = field(default_factory=list)
    repacked: dict[str, str] = field(default_factory=dict)
    """Tensor to the layout that it was rearranged to."""
    repacked_count: int | None = None
    """As the fork tells it, which names no tensors."""
    last_error: str = ""

    def line(self, level: int, text: str) -> None:
        text = text.rstrip()
        if "buffer size =" in text:
            self.buffers.append(" ".join(text.rpartition(":")[2].split()))
        elif match := _REPACKED.search(text):
            self.repacked[match[1]] = match[2]
        elif match := _REPACKED_COUNT.search(text):
            self.repacked_count = int(match[1])
        if level in (_WARNING, _ERROR):
            print(text, file=sys.stderr)
        if level == _ERROR:
            self.last_error = text

    def install(self, library: Any) -> Any:
        """Hand the engine's log to this object; the result is what the library will call."""

        def receive(level: int, text: bytes | None, _: Any) -> None:
            self.line(level, (text or b"").decode(errors="replace"))

        callback = _LOG_CALLBACK(receive)
        library.llama_log_set(callback, None)
        return callback


def type_name(library: Any, number: int) -> str:
    """ggml's own name of a type; the fork has types that its file format's other readers do not know."""
    name_of = library.ggml_type_name
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    return str(name_of(number).decode())


def kv_dtype(library: Any, keys: int, values: int) -> str:
    """Of a cache whose keys and values have these types."""
    names = [type_name(library, number) for number in (keys, values)]
    return "+".join(dict.fromkeys(_DTYPES.get(name, name) for name in names))


def system_info(library: Any) -> str:
    """The engine's line on what it was compiled for and found."""
    told = library.llama_print_system_info
    told.restype, told.argtypes = ctypes.c_char_p, []
    return str(told().decode().strip(" |\n"))


def tensor_names(patterns: Sequence[str], blocks: int) -> Iterator[str]:
    """``blk.#.attn_q.weight`` for every block, and names without ``#`` as they are."""
    for pattern in patterns:
        yield from (
            (pattern.replace("#", str(block)) for block in range(blocks)) if "#" in pattern else (pattern,)
        )


def types_in_memory(library: Any, model: Any, names: Iterable[str]) -> dict[str, str]:
    """Tensor to its type in the loaded model, of those that it has."""
    find = library.llama_get_model_tensor
    # A tensor begins with its type.
    find.restype, find.argtypes = ctypes.POINTER(ctypes.c_int), [ctypes.c_void_p, ctypes.c_char_p]
    found = ((name, find(model, name.encode())) for name in names)
    return {name: type_name(library, tensor[0]) for name, tensor in found if tensor}


def weights_seen(layouts: Mapping[str, str], file_types: Mapping[str, int]) -> dict[str, Any]:
    """``kernels``, ``ran`` and ``notes`` of a record, from the layouts that were seen and the number of
    matrices of each type in the file."""
    seen, total = len(layouts), sum(file_types.values())
    in_file = ", ".join(f"{name} {count}" for name, count in file_types.items())
    record: dict[str, Any] = {"ran": {}, "notes": []}
    if layouts:
        record["kernels"] = dict(Counter(f"mul_mat {layout}" for layout in layouts.values()))
    if head := next((name for name in HEADS if name in layouts), None):
        record["ran"]["head_kernel"] = f"mul_mat {layouts[head]}"
    if seen < total:
        of = f" of {total - seen} of {total} matrices" if seen else ""
        record["notes"].append(f"kernels: not observed{of}; tensor types of the file: {in_file}")
    return record
