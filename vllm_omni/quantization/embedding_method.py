"""vLLM's seam for the embedding table and the head, on one packed copy of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import FormatError
from vllm_omni.layout_header import PACKED_SUFFIX
from vllm_omni.quantization.linear_method import NO_BIAS
from vllm_omni.quantization.packed_parameter import PackedShards, Shard

if TYPE_CHECKING:
    from vllm_omni.quantization.cpu_int4 import CpuInt4Config

# The operators' `dtype` argument.
ROW_DTYPE_CODES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}


def pad_vocabulary(logits: torch.Tensor, padding: int) -> torch.Tensor:
    """``logits`` with ``padding`` columns of -inf behind: the width that vLLM pads a vocabulary to."""
    if padding == 0:
        return logits
    return torch.nn.functional.pad(logits, (0, padding), value=float("-inf"))


class Int4EmbeddingMethod(QuantizeMethodBase):
    """Rows of the packed table as embeddings, and the same bytes as the head's weight.

    vLLM pads the vocabulary to a multiple of 64; the packed table holds the real N rows and no padding. Token
    ids stay below N. The head's logits are padded with -inf to vLLM's width, which counts its padding from
    the end where it looks for the best tokens itself.
    """

    def __init__(self, config: CpuInt4Config, module: str, activation: str) -> None:
        self.config = config
        self.module = module
        self.activation = ACTIVATIONS[activation]
        self.activation_name = activation
        self.no_bias = NO_BIAS
        self.n = 0
        self.k = 0
        self.padding = 0
        self.dtype_code = 0

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
        """Give ``layer`` its ``weight_packed``: uint8, empty until the checkpoint's tensor comes."""
        if layer.tp_size > 1:
            raise FormatError(
                f"{self.module}: cpu_int4 cannot split a table of {layer.org_vocab_size} rows over "
                f"{layer.tp_size} "
                "ranks: use --tensor-parallel-size 1"
            )
        self.n, self.k = layer.org_vocab_size, layer.embedding_dim
        self.padding = layer.num_embeddings_padded - self.n
        self.dtype_code = ROW_DTYPE_CODES[params_dtype]
        self._params_dtype = params_dtype
        shard = Shard(None, self.module + PACKED_SUFFIX, self.n)
        layer.register_parameter(
            "weight_packed", PackedShards(self.module, [shard], self.k, self.config.file_of).parameter()
        )

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> torch.nn.Module:
        """The head takes the table's parameter: one copy, filled once."""
        packed = getattr(embed_tokens, "weight_packed", None)
        if packed is None:
            raise FormatError(
                f"{self.module}: tied to an embedding table that is not packed: list both in 'ignore'"
            )
        layer.weight_packed = packed
        return layer

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        shards: PackedShards = layer.weight_packed.packed_shards
        shards.prove_filled()
        self.config.log_kernels(self._params_dtype, self.activation_name, shards.bits)

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """``input_`` is int64 token ids of any shape; returns ``[..., K]`` of the model's dtype."""
        return torch.ops.vllm.cpu_int4_embedding(input_, layer.weight_packed, self.n, self.k, self.dtype_code)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits: ``x`` is ``[..., K]``; returns ``[..., padded N]``, -inf from N on."""
        # A head's bias is as long as vLLM's padded vocabulary.
        logits = torch.ops.vllm.cpu_int4_linear(
            x,
            layer.weight_packed,
            self.no_bias if bias is None else bias[: self.n],
            self.n,
            self.k,
            self.activation,
        )
        return pad_vocabulary(logits, self.padding)
