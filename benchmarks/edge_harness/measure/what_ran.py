"""What a model's layers really ran: kernels by name, bits of weights and head, activations.

Our kernels are counted where they run; operators of vLLM and torch are read from a profile of one decode
step. The head's kernel is known because the head is run alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.edge_harness.measure.engine import InProcessEngine
from benchmarks.edge_harness.measure.op_times import OpTime, kernels_of, op_times

# Operators whose kernels the native counters name.
OUR_OPERATORS = ("cpu_int4_linear", "cpu_int4_embedding", "int4_linear", "int4_embedding")
_DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}


def profiled(run: Callable[[], object], steps: int = 1) -> list[OpTime]:
    """The operators that ``run`` calls, on this thread."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return op_times(profiler.events(), steps)


def head_alone(engine: InProcessEngine) -> None:
    """Compute the logits of one hidden state."""
    import torch

    config = engine.vllm_config.model_config
    hidden = torch.zeros(1, config.get_hidden_size(), dtype=config.dtype)
    with torch.inference_mode():
        engine.model.compute_logits(hidden)


def what_ran(engine: InProcessEngine, step_rows: list[OpTime]) -> tuple[dict[str, int], dict[str, Any]]:
    """``kernels`` and ``ran`` of a record. ``step_rows`` is the profile of one decode step; the native
    counters must hold what ran since the engine was built."""
    from vllm_omni import _rust

    ours = {row.kernel: row for row in _rust.kernel_calls()}
    _rust.reset_kernel_calls()
    head_rows = profiled(lambda: head_alone(engine))
    head_ours = {row.kernel: row for row in _rust.kernel_calls()}
    plain = [row for row in step_rows if row.name.rpartition("::")[2] not in OUR_OPERATORS]
    kernels = {name: row.layers for name, row in ours.items()} | kernels_of(plain)
    dtype = str(engine.vllm_config.model_config.dtype).removeprefix("torch.")
    if ours:
        head_kernels = sorted(head_ours)
        layers = dict.fromkeys(
            row.bits
            for name, row in ours.items()
            if row.layers > (1 if name in head_ours else 0) and not name.startswith("rows")
        )
        ran = {
            "weight_bits": _one([*layers]),
            "head_bits": _one([row.bits for row in head_ours.values()]) or _DTYPE_BITS[dtype],
            "head_kernel": "+".join(head_kernels) or _longest(head_rows),
            "activation": _one(_activations(engine.model)),
        }
    else:
        ran = {
            "weight_bits": _configured_bits(engine) or _DTYPE_BITS[dtype],
            "head_bits": _DTYPE_BITS[dtype],
            "head_kernel": _longest(head_rows),
            "activation": dtype,
        }
    return kernels, ran


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


def _longest(rows: list[OpTime]) -> str | None:
    """The GEMM operator that took longest."""
    return next((row.name for row in rows if row.bucket == "gemm"), None)


def _one(values: list[Any]) -> Any:
    """The value, several as text, none as None."""
    if len(values) <= 1:
        return values[0] if values else None
    return "+".join(str(value) for value in sorted(values))
