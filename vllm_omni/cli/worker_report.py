"""What a vLLM worker process says about the kernels that serve its layers.

vLLM mixes the class into its worker (``worker_extension_cls``), so the answer comes from the process that
computes: its instruction set level, its threads, the packed bytes it has mapped.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from vllm_omni import ops
from vllm_omni.quantization.kernel_names import DTYPE_NAMES, kernel_name


class WorkerReport:
    """Adds :meth:`omni_worker_report` to vLLM's worker."""

    def omni_worker_report(self) -> dict[str, Any]:
        """``threads`` of the OpenMP team; ``native`` and its ``reason``; per kind of layer what computes it.

        ``layers`` holds one row per kind (``qkv_proj``, …) and packed shape: ``count`` layers of ``n``
        outputs and ``k`` inputs, ``bits``, ``activation``, ``kernels`` by bits, ``packed_bytes`` of all of
        them. A tied head shares the table's bytes: it is a row of its own with ``packed_bytes`` 0.
        """
        model: torch.nn.Module = self.model_runner.get_model()  # type: ignore[attr-defined]
        dtype: torch.dtype = self.model_config.dtype  # type: ignore[attr-defined]
        status = ops.status()
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        counted: set[int] = set()
        # remove_duplicate=False: a tied head may be the very module of the table.
        for name, module in model.named_modules(remove_duplicate=False):
            packed = getattr(module, "weight_packed", None)
            method = getattr(module, "quant_method", None)
            if packed is None or method is None:
                continue
            kind = name.rpartition(".")[2]
            bits = tuple(sorted(set(packed.packed_shards.bits)))
            is_table = isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
            key = (kind, method.n, method.k, bits, method.activation)
            row = rows.setdefault(
                key,
                {
                    "kind": kind,
                    "count": 0,
                    "n": method.n,
                    "k": method.k,
                    "bits": list(bits),
                    "activation": method.activation_name,
                    "kernels": [_kernel(dtype, method.activation, bit, is_table) for bit in bits],
                    "packed_bytes": 0,
                },
            )
            row["count"] += 1
            address = packed.data_ptr()
            if address not in counted:
                counted.add(address)
                row["packed_bytes"] += packed.numel()
        return {
            "threads": torch.get_num_threads(),
            "dtype": DTYPE_NAMES[dtype],
            "native": status.native,
            "reason": status.reason,
            "layers": list(rows.values()),
        }


def _kernel(dtype: torch.dtype, activation: int, bits: int, is_table: bool) -> dict[str, Any]:
    name = kernel_name(dtype, activation, bits)
    if name is None:
        return {"name": "portable", "isa": "torch", "bits": bits}
    if is_table:
        # A table is never multiplied: its rows are read by one routine on every machine.
        return {"name": "rows", "isa": "scalar", "bits": bits}
    from vllm_omni import _rust

    isa = next(kernel.isa for kernel in _rust.kernels() if kernel.name == name)
    return {"name": name, "isa": isa, "bits": bits}
