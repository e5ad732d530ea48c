"""vLLM's seam for a table and a head that are not packed, on one copy of both: the checkpoint's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import Parameter
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

from vllm_omni.errors import FormatError
from vllm_omni.quantization.embedding_method import ROW_DTYPE_CODES, pad_vocabulary
from vllm_omni.quantization.linear_method import NO_BIAS

if TYPE_CHECKING:
    from vllm_omni.quantization.cpu_int4 import CpuInt4Config


class DenseEmbeddingMethod(QuantizeMethodBase):
    """Rows of an unquantized table as embeddings, and the same bytes as the head's weight.

    vLLM's own method copies the table into a padded parameter and lets oneDNN make another copy of it for
    each module that might multiply with it. Here the parameter is the checkpoint's tensor where it lies in
    the mapped file: N rows and no padding. The head's logits are padded with -inf, as those of a packed
    table.

    vLLM multiplies with a head whose ``head_dtype`` is not the model's itself, on a weight that must be
    padded. Such a model's tables stay with vLLM's method; as this one is none of its kind, vLLM refuses
    rather than reads past it where the two meet all the same.
    """

    def __init__(self, config: CpuInt4Config, prefix: str) -> None:
        self.config = config
        # Several models pass no prefix for their table.
        self._name = prefix or "the embedding table"
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
        """Give ``layer`` its ``weight``: ``[0, K]`` until the checkpoint's tensor comes."""
        self.n, self.k = layer.org_vocab_size, layer.embedding_dim
        self.padding = layer.num_embeddings_padded - self.n
        self.dtype_code = ROW_DTYPE_CODES[params_dtype]
        self._params_dtype = params_dtype
        weight = Parameter(torch.empty(0, self.k, dtype=params_dtype), requires_grad=False)
        weight.weight_loader = self.load
        layer.register_parameter("weight", weight)

    def load(self, parameter: Parameter, loaded: torch.Tensor) -> None:
        """vLLM's ``weight_loader``: takes the tensor by reference.

        A tensor whose elements do not lie where they may be read is copied once. So is one of another type
        than the model's, converted as vLLM does, for models that read the weight themselves; but in an fp32
        model 16 bits stay 16 bits. Raises ``FormatError`` for a tensor of another shape or type.
        """
        if loaded.dtype not in ROW_DTYPE_CODES or loaded.shape != (self.n, self.k):
            raise FormatError(
                f"{self._name}: expected a weight of {[self.n, self.k]} in bfloat16, float16 or float32, "
                f"found {loaded.dtype} {list(loaded.shape)}"
            )
        if loaded.itemsize >= self._params_dtype.itemsize:
            loaded = loaded.to(self._params_dtype)
        if loaded.data_ptr() % loaded.itemsize or not loaded.is_contiguous():
            loaded = loaded.clone(memory_format=torch.contiguous_format)
        parameter.data = loaded

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> torch.nn.Module:
        """The head takes the table's parameter: one copy, filled once."""
        weight = getattr(embed_tokens, "weight", None)
        if weight is None:
            raise FormatError(
                f"{self._name}: not packed, but tied to an embedding table that is: list both in 'ignore', "
                "or none"
            )
        layer.weight = weight
        return layer

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if layer.weight.shape != (self.n, self.k):
            raise FormatError(f"{self._name}: the checkpoint holds no weight of {[self.n, self.k]}")
        self.config.log_dense_kernel(self._params_dtype, layer.weight.dtype)

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """``input_`` is int64 token ids of any shape; returns ``[..., K]`` of the model's dtype.

        One operator whatever the table's type is: a saved compiled model is found by the model's type alone.
        """
        return torch.ops.vllm.cpu_dense_embedding(input_, layer.weight, self.dtype_code)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits: ``x`` is ``[..., K]``; returns ``[..., padded N]``, -inf from N on."""
        # A head's bias is as long as vLLM's padded vocabulary.
        bias = self.no_bias if bias is None else bias[: self.n]
        return pad_vocabulary(torch.ops.vllm.cpu_dense_linear(x, layer.weight, bias), self.padding)
