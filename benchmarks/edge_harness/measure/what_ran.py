"""What a model's layers really ran: kernels by name, bits of weights and head, activations.

Our kernels are counted where they run; operators of vLLM and torch are read from a profile of one decode
step. The head's kernels are known because the head is run alone; what a step runs beyond them is the layers'.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.edge_harness.measure.engine import InProcessEngine
from benchmarks.edge_harness.measure.op_times import OpTime, kernels_of, op_times

# Operators whose kernels the native counters name.
OUR_OPERATORS = tuple(
    prefix + name
    for prefix in ("cpu_", "")
    for name in ("int4_linear", "int4_embedding", "dense_linear", "dense_embedding")
)
# Operators of vLLM and torch that read quantized weights.
_PACKED_OPERATOR = re.compile(r"wna16|gptq|awq|int[48]|[48]bit|scaled_mm|fp8|marlin")
_DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}


class KernelCounts(Protocol):
    """What is used of ``_rust.KernelCalls``."""

    @property
    def kernel(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def untracked_calls(self) -> int: ...


def profiled(run: Callable[[], object], steps: int = 1) -> list[OpTime]:
    """The operators that ``run`` calls, on this thread."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return op_times(profiler.events(), steps)


def head_alone(engine: InProcessEngine, rows: int = 1) -> None:
    """Compute the logits of ``rows`` hidden states, as a step of that many sequences does."""
    import torch

    config = engine.vllm_config.model_config
    hidden = torch.zeros(rows, config.get_hidden_size(), dtype=config.dtype)
    with torch.inference_mode():
        engine.model.compute_logits(hidden)


@dataclass(frozen=True)
class Seen:
    """What was observed: our kernels since the engine was built and of the head alone, by name; operators of
    one decode step and of the head alone with as many rows."""

    ours: Mapping[str, KernelCounts]
    head_ours: Mapping[str, KernelCounts]
    step_rows: Sequence[OpTime]
    head_rows: Sequence[OpTime]
    dtype: str
    configured_bits: int | None = None


def what_ran(
    engine: InProcessEngine, step_rows: list[OpTime], batch: int = 1
) -> tuple[dict[str, int], dict[str, Any], list[str]]:
    """``kernels``, ``ran`` and notes of a record. ``step_rows`` is the profile of one decode step of
    ``batch`` sequences; the native counters must hold what ran since the engine was built."""
    from vllm_omni import _rust

    ours = {row.kernel: row for row in _rust.kernel_calls()}
    _rust.reset_kernel_calls()
    head_rows = profiled(lambda: head_alone(engine, batch))
    seen = Seen(
        ours=ours,
        head_ours={row.kernel: row for row in _rust.kernel_calls()},
        step_rows=step_rows,
        head_rows=head_rows,
        dtype=str(engine.vllm_config.model_config.dtype).removeprefix("torch."),
        configured_bits=_configured_bits(engine),
    )
    ran, notes = ran_of(seen)
    ran["activation"] = _one(_activations(engine.model)) if ours else seen.dtype
    ran["kv_dtype"] = engine.kv_dtype
    plain = [row for row in step_rows if not _is_ours(row)]
    return {name: row.layers for name, row in ours.items()} | kernels_of(plain), ran, notes


def ran_of(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Bits of layers and head, and the head's kernel. A layer or a head that another operator computed joins
    with that operator's bits: ``4+16``."""
    of_head = Counter({row.name: round(row.calls) for row in _gemms(seen.head_rows)})
    plain_layers = [row for row in _gemms(seen.step_rows) if round(row.calls) > of_head[row.name]]
    layers = {
        row.bits
        for name, row in seen.ours.items()
        if row.layers > (1 if name in seen.head_ours else 0) and not name.startswith("rows")
    } | {_operator_bits(row.name, seen) for row in plain_layers}
    head = {row.bits for row in seen.head_ours.values()} | {_operator_bits(name, seen) for name in of_head}
    notes = [
        f"{row.kernel}: {row.untracked_calls} calls found no room in the counters: its layers are a "
        "lower bound"
        for row in seen.ours.values()
        if row.untracked_calls > 0
    ]
    for part, bits in (("layers", layers), ("head", head)):
        if not bits:
            notes.append(f"no GEMM operator of the {part} was seen: its bits are the configuration's")
            bits.add(seen.configured_bits or _DTYPE_BITS[seen.dtype])
    return {
        "weight_bits": _one([*layers]),
        "head_bits": _one([*head]),
        "head_kernel": "+".join((*sorted(seen.head_ours), *sorted(of_head))) or None,
    }, notes


def _gemms(rows: Iterable[OpTime]) -> list[OpTime]:
    """Operators that compute a GEMM, but for ours, which are counted where they run."""
    names = kernels_of(row for row in rows if row.bucket == "gemm" and not _is_ours(row))
    return [row for row in rows if row.name in names and row.bucket == "gemm"]


def _is_ours(row: OpTime) -> bool:
    return row.name.rpartition("::")[2] in OUR_OPERATORS


def _operator_bits(name: str, seen: Seen) -> int:
    """Of the weights that an operator reads: the configuration's where it takes packed ones."""
    if _PACKED_OPERATOR.search(name):
        return seen.configured_bits or (4 if "4" in name else 8)
    return _DTYPE_BITS[seen.dtype]


def _activations(model: Any) -> list[str]:
    names = (
        getattr(getattr(module, "quant_method", None), "activation_name", None) for module in model.modules()
    )
    return [name for name in dict.fromkeys(names) if name is not None]


def _configured_bits(engine: InProcessEngine) -> int | None:
    """Bits of the checkpoint's own quantization, for methods that count nothing."""
    config = engine.vllm_config.quant_config
    bits = getattr(config, "weight_bits", None) or getattr(config, "bits", None)
    return int(bits) if bits is not None else None


def _one(values: list[Any]) -> Any:
    """The value, several as text, none as None."""
    if len(values) <= 1:
        return values[0] if values else None
    return "+".join(str(value) for value in sorted(values))
