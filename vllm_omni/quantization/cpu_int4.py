"""The ``cpu_int4`` quantization configuration, as vLLM sees it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from vllm_omni import ops
from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import FormatError
from vllm_omni.layout_header import PACKED_SUFFIX
from vllm_omni.patch import left_out
from vllm_omni.quantization.dense_method import DenseEmbeddingMethod
from vllm_omni.quantization.embedding_method import Int4EmbeddingMethod
from vllm_omni.quantization.kernel_names import DTYPE_NAMES, dense_kernel_name, kernel_names
from vllm_omni.quantization.linear_method import Int4LinearMethod
from vllm_omni.quantization.options import (
    METHOD_NAME,
    Int4Options,
    activation_override,
    refuse_load_format,
    refuse_speculative_method,
)
from vllm_omni.quantization.packed_folder import PackedFolder, PackedTensor, read_packed_folder

if TYPE_CHECKING:
    from vllm.model_executor.models.utils import WeightsMapper

_log = logging.getLogger("vllm.omni_edge")

# The name of a table for which a model passes no prefix and no folder was read.
_TABLE_NAME = "embed_tokens"
# What checkpoints call an untied head, which has the table's shape.
_HEAD_NAMES = ("lm_head", "embed_out")

_logged_kernels: set[tuple[str, str, tuple[int, ...]]] = set()


class CpuInt4Config(QuantizationConfig):
    """Packed 4- and 8-bit weights on x86 CPUs.

    Which layers are packed is read from the model folder's headers where the folder is local, and from the
    ``ignore`` list otherwise. What changes the compiled graph (activation, ignore list, the weights' digest)
    comes from the checkpoint's ``quantization_config`` and from ``additional_config``, which vLLM's
    compile-cache key contains.
    """

    def __init__(self, options: Int4Options | None = None) -> None:
        super().__init__()
        if options is None:
            # vLLM builds a configuration without arguments for `--quantization cpu_int4` on a plain
            # checkpoint.
            raise FormatError(
                f"--quantization {METHOD_NAME}: the checkpoint is not packed (config.json has no "
                "quantization_config): "
                "pack it first with `vllm-omni import`"
            )
        self.options = options
        self.folder: PackedFolder | None = None
        self.tied = False
        self._mapper: WeightsMapper | None = None
        # The folder's names as vLLM's, by what they name.
        self._mapped: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"CpuInt4Config({self.options})"

    @classmethod
    def get_name(cls) -> str:
        return METHOD_NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return list(DTYPE_NAMES)

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CpuInt4Config:
        """Raises ``FormatError`` (a ``ValueError``) for an unknown key, a wrong value or a newer layout, and
        where a patch that the weights need was left out of this engine."""
        for outcome in left_out("engine"):
            raise FormatError(
                f"{METHOD_NAME} is not served by this vLLM: the patch of {outcome.patch.target} was left "
                f"out ({outcome.reason})"
            )
        return cls(Int4Options.from_dict(config))

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        """Read the folder's headers: a damaged folder is refused here, before any engine process starts."""
        text_config = hf_config.get_text_config() if hf_config is not None else None
        self.tied = bool(getattr(text_config, "tie_word_embeddings", False))
        path = Path(model_name)
        self._mapped.clear()
        if path.is_dir():
            self.folder = read_packed_folder(path)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """Models give the mapping from the checkpoint's module names to vLLM's."""
        self._mapper = hf_to_vllm_mapper
        self._mapped.clear()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """The method for ``layer``; ``None`` for layers that hold no weight of ours (attention)."""
        if isinstance(layer, LinearBase):
            self._refuse_engine()
            if self._linear_is_packed(prefix):
                return Int4LinearMethod(self, prefix, self._activation())
            return UnquantizedLinearMethod()
        if isinstance(layer, VocabParallelEmbedding):
            self._refuse_engine()
            module = self._packed_embedding(layer, prefix)
            if module is not None:
                return Int4EmbeddingMethod(self, module, self._activation())
            if layer.tp_size > 1 or layer.num_embeddings != layer.org_vocab_size or _head_is_vllms():
                # Parts of a table, rows that an adapter adds, and a head of another type are vLLM's.
                return UnquantizedEmbeddingMethod()
            return DenseEmbeddingMethod(self, prefix)
        return None

    def shard_modules(self, prefix: str) -> list[str]:
        """The checkpoint's modules behind a vLLM layer: several for a fused layer that is stored in parts."""
        parent, _, name = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(name)
        if parts is None or (self.folder is not None and prefix in self._packed_modules()):
            return [prefix]
        return [f"{parent}.{part}" if parent else part for part in parts]

    def file_of(self, tensor: str) -> str | None:
        """The file that holds a packed tensor, where the folder is local."""
        if self.folder is None:
            return None
        found = self._packed_modules().get(tensor.removesuffix(PACKED_SUFFIX))
        return found.file if found is not None else None

    def log_kernels(self, dtype: torch.dtype, activation: str, bits: tuple[int, ...]) -> None:
        """Log once per process which kernels serve weights of these bits."""
        kinds = (DTYPE_NAMES[dtype], activation, tuple(sorted(set(bits))))
        if kinds in _logged_kernels:
            return
        _logged_kernels.add(kinds)
        found = {bit: kernel_names(dtype, ACTIVATIONS[activation], bit) for bit in kinds[2]}
        if None in found.values():
            names = f"portable operators ({ops.status().reason})"
        else:
            names = ", ".join(f"{bit} bit {name}" for bit, name in found.items())
        _log.info("cpu_int4: activation %s, model dtype %s, kernels: %s", activation, kinds[0], names)

    def log_dense_kernel(self, dtype: torch.dtype, weights: torch.dtype) -> None:
        """Log once per process which kernel serves unquantized tables of type ``weights``."""
        kinds = (DTYPE_NAMES[dtype], DTYPE_NAMES[weights], ())
        if kinds in _logged_kernels:
            return
        _logged_kernels.add(kinds)
        name = dense_kernel_name(dtype, weights) or f"portable operators ({ops.status().reason})"
        _log.info("cpu_int4: unquantized %s table, model dtype %s, kernel: %s", kinds[1], kinds[0], name)

    def _activation(self) -> str:
        vllm_config = get_current_vllm_config_or_none()
        override = activation_override(vllm_config.additional_config) if vllm_config is not None else None
        return override or self.options.activation

    @staticmethod
    def _refuse_engine() -> None:
        """Raise ``FormatError`` for an engine that loads otherwise, or that builds other models too."""
        vllm_config = get_current_vllm_config_or_none()
        if vllm_config is None:
            return
        refuse_load_format(str(vllm_config.load_config.load_format))
        if vllm_config.speculative_config is not None:
            refuse_speculative_method(str(vllm_config.speculative_config.method))

    def _packed_modules(self) -> dict[str, PackedTensor]:
        """The folder's packed tensors under vLLM's module names."""
        assert self.folder is not None
        if self._mapper is None:
            return self.folder.packed
        if "packed" not in self._mapped:
            self._mapped["packed"] = self._mapper.apply_dict(self.folder.packed)
        return self._mapped["packed"]

    def _is_plain(self, module: str) -> bool:
        """Whether the folder holds the module's weight unquantized, under vLLM's name or its own."""
        assert self.folder is not None
        if "plain" not in self._mapped:
            names = self._mapper.apply_list(list(self.folder.plain)) if self._mapper is not None else []
            self._mapped["plain"] = self.folder.plain.union(names)
        return f"{module}.weight" in self._mapped["plain"]

    def _ignored(self, module: str) -> bool:
        if self.options.ignores(module):
            return True
        if self._mapper is None:
            return False
        return module in self._mapper.apply_list(
            [entry for entry in self.options.ignore if not entry.startswith("re:")]
        )

    def _linear_is_packed(self, prefix: str) -> bool:
        modules = self.shard_modules(prefix)
        ignored = [module for module in modules if self._ignored(module)]
        if len(ignored) == len(modules) or self._ignored(prefix):
            return False
        if ignored:
            rest = [module for module in modules if module not in ignored]
            raise FormatError(
                f"{prefix}: quantization_config ignores {', '.join(ignored)} but not {', '.join(rest)}, "
                "which vLLM fuses into one layer: ignore all or none"
            )
        if self.folder is not None and not any(module in self._packed_modules() for module in modules):
            plain = [module for module in modules if self._is_plain(module)]
            if plain:
                raise FormatError(
                    f"{prefix}: the checkpoint stores {plain[0]}.weight unquantized: expected "
                    f"{plain[0]}.weight_packed, "
                    "or the module in quantization_config's ignore"
                )
        return True

    def _packed_embedding(self, layer: VocabParallelEmbedding, prefix: str) -> str | None:
        """The checkpoint's module for a table or head, or ``None`` where it is unquantized.

        Several models pass no prefix for their table, and a tied head's name is in no folder: the table is
        then found by its shape. Raises ``FormatError`` where more than one packed tensor has it.
        """
        is_head = isinstance(layer, ParallelLMHead)
        if self.folder is None:
            name = _TABLE_NAME if self.tied or not prefix else prefix
            return None if self._ignored(name) else name
        packed = self._packed_modules()
        if prefix in packed:
            return prefix
        if prefix and not (is_head and self.tied) and (self._ignored(prefix) or self._is_plain(prefix)):
            return None
        if is_head and not self.tied:
            # Not in the folder under its name: the proof at loading time names it.
            return prefix
        shape = (layer.org_vocab_size, layer.embedding_dim)
        found = [
            module
            for module, tensor in packed.items()
            if (tensor.n, tensor.k) == shape and module.rpartition(".")[2] not in _HEAD_NAMES
        ]
        if len(found) > 1:
            raise FormatError(
                f"{prefix or 'the embedding table'}: expected one packed table of {shape[0]} rows of "
                f"{shape[1]}, found {', '.join(found)}"
            )
        return found[0] if found else None


def _head_is_vllms() -> bool:
    """Whether vLLM multiplies with the head itself, on its padded weight: where ``head_dtype`` is not the
    model's. A table that is tied to the head must be padded then, too."""
    config = get_current_vllm_config_or_none()
    model = config.model_config if config is not None else None
    return model is not None and model.runner_type != "pooling" and model.head_dtype != model.dtype
