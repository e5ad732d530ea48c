"""vLLM's seam for linear layers, on packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase, QKVParallelLinear

from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import FormatError
from vllm_omni.layout_header import PACKED_SUFFIX
from vllm_omni.quantization.packed_parameter import PackedShards, Shard

if TYPE_CHECKING:
    from vllm_omni.quantization.cpu_int4 import CpuInt4Config

_QKV_IDENTS = ("q", "k", "v")

# The operators' way to say "no bias": one empty tensor for all layers.
NO_BIAS = torch.empty(0)


class Int4LinearMethod(LinearMethodBase):
    """``y = x W^T (+ bias)`` with W packed; a fused layer is one packed tensor of several segments."""

    def __init__(self, config: CpuInt4Config, prefix: str, activation: str) -> None:
        self.config = config
        self.prefix = prefix
        self.activation = ACTIVATIONS[activation]
        self.activation_name = activation
        self.no_bias = NO_BIAS
        self.n = 0
        self.k = 0

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Give ``layer`` its ``weight_packed``: uint8, empty until the checkpoint's tensors come."""
        self.n, self.k = sum(output_partition_sizes), input_size_per_partition
        if (self.n, self.k) != (output_size, input_size):
            raise FormatError(
                f"{self.prefix}: cpu_int4 cannot split a layer of {output_size} outputs and {input_size} "
                f"inputs into parts of {self.n} and {self.k}: use --tensor-parallel-size 1"
            )
        self._params_dtype = params_dtype
        count = len(output_partition_sizes)
        modules = self.config.shard_modules(self.prefix)
        if len(modules) != count:
            # Stored fused, or fused by a model that does not name the parts.
            modules = [self.prefix] * count
        idents: Sequence[str | int] = _QKV_IDENTS if isinstance(layer, QKVParallelLinear) else range(count)
        shards = [
            Shard(ident, module + PACKED_SUFFIX, n)
            for ident, module, n in zip(idents, modules, output_partition_sizes, strict=True)
        ]
        packed = PackedShards(self.prefix, shards, self.k, self.config.file_of)
        layer.register_parameter("weight_packed", packed.parameter())

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        shards: PackedShards = layer.weight_packed.packed_shards
        shards.prove_filled()
        self.config.log_kernels(self._params_dtype, self.activation_name, shards.bits)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x`` is ``[..., K]``; returns ``[..., N]`` of the same dtype."""
        return torch.ops.vllm.cpu_int4_linear(
            x, layer.weight_packed, self.no_bias if bias is None else bias, self.n, self.k, self.activation
        )
