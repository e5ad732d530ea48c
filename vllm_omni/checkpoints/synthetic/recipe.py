"""What a synthetic checkpoint is made from, and what each of its tensors becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vllm_omni import int4
from vllm_omni.checkpoints.synthetic.geometries import Geometry, Tensor, geometry, tensors
from vllm_omni.checkpoints.synthetic.random_weights import weight
from vllm_omni.errors import OmniError
from vllm_omni.formats import round_to_nearest
from vllm_omni.formats.affine import AffineCodes

CheckpointFormat = Literal["packed", "bf16", "gptq", "gguf-f16"]
FORMATS: tuple[CheckpointFormat, ...] = ("packed", "bf16", "gptq", "gguf-f16")

LINEAR_BITS = 4
UNQUANTIZED_BITS = 16
# vLLM pads a head to a multiple of this, and cannot pad a GPTQ one.
_HEAD_ROWS = 64
# Those that vLLM's GPTQ takes on a CPU.
GROUP_SIZES = (128, 64, 32)
_HEAD_BITS: dict[CheckpointFormat, tuple[int, ...]] = {
    # The first is the default.
    "packed": (8, 4, UNQUANTIZED_BITS),
    "gptq": (UNQUANTIZED_BITS, LINEAR_BITS),
    "bf16": (8, 4, UNQUANTIZED_BITS),
    "gguf-f16": (8, 4, UNQUANTIZED_BITS),
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the bytes of a checkpoint.

    ``quantized``: the unquantized formats hold what the 4-bit weights dequantize to, instead of the original.
    ``group_size`` and ``head_bits`` are 0 where nothing is quantized.
    """

    geometry: Geometry
    format: CheckpointFormat
    seed: int
    group_size: int
    head_bits: int
    quantized: bool

    @classmethod
    def checked(
        cls,
        name: str,
        *,
        format: str,
        seed: int = 0,
        group_size: int | None = None,
        head_bits: int | None = None,
        quantized: bool = False,
    ) -> Recipe:
        """The recipe of these options. Raises ``OmniError`` naming the one that makes no sense."""
        dimensions = geometry(name)
        if format not in FORMATS:
            raise OmniError(f"--format: expected one of {', '.join(FORMATS)}; found {format!r}")
        if seed < 0:
            raise OmniError(f"--seed: expected a whole number from 0, found {seed}")
        is_4_bit = format in ("packed", "gptq")
        if quantized and is_4_bit:
            raise OmniError(f"--quantized-weights: expected --format bf16 or gguf-f16, found {format}")
        if format == "gguf-f16" and dimensions.family == "spark2_5":
            raise OmniError(
                f"--format gguf-f16: the gguf library has no architecture for {name}: "
                "expected packed, bf16 or gptq"
            )
        if not is_4_bit and not quantized:
            for option, value in (("--group-size", group_size), ("--head-bits", head_bits)):
                if value is not None:
                    raise OmniError(
                        f"{option}: expected none: --format {format} quantizes nothing "
                        "(--quantized-weights stores what the 4-bit weights stand for)"
                    )
            return cls(dimensions, format, seed, 0, 0, False)
        return cls(
            dimensions,
            format,
            seed,
            _group_size(dimensions, group_size),
            _head_bits(dimensions, format, head_bits),
            quantized,
        )

    def bits_of(self, tensor: Tensor) -> int:
        """Bits that the weight is quantized to; ``UNQUANTIZED_BITS`` where it is not."""
        if self.format in ("bf16", "gguf-f16") and not self.quantized:
            return UNQUANTIZED_BITS
        if tensor.role in ("linear", "residual"):
            return LINEAR_BITS
        if tensor.role == "head" or (tensor.role == "table" and self.format != "gptq"):
            return self.head_bits
        return UNQUANTIZED_BITS

    def original(self, tensor: Tensor) -> torch.Tensor:
        """bfloat16, the same whatever the format."""
        return weight(tensor, self.geometry, self.seed)

    def codes(self, values: torch.Tensor, bits: int) -> AffineCodes:
        """The codes of a weight, which are the same in every 4-bit format."""
        return round_to_nearest.quantize(
            values, group_size=self.group_size, bits=bits, symmetric=True, scales_exact_in_bfloat16=True
        )

    def unquantized(self, tensor: Tensor, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What an unquantized format stores of the original ``values``."""
        bits = self.bits_of(tensor)
        if bits == UNQUANTIZED_BITS or not self.quantized:
            return values.to(dtype)
        return int4.pack(self.codes(values, bits)).dequantize(dtype)


def _group_size(dimensions: Geometry, given: int | None) -> int:
    inputs = {tensor.name: tensor.shape[1] for tensor in tensors(dimensions) if len(tensor.shape) == 2}
    fitting = [size for size in GROUP_SIZES if all(k % size == 0 for k in inputs.values())]
    if given is None:
        return fitting[0]
    if given not in GROUP_SIZES:
        raise OmniError(f"--group-size: expected one of {', '.join(map(str, GROUP_SIZES))}; found {given}")
    if given not in fitting:
        name, k = next((name, k) for name, k in inputs.items() if k % given)
        raise OmniError(
            f"--group-size {given}: {name} of {dimensions.name} has {k} inputs, which is no multiple: "
            f"expected {' or '.join(map(str, fitting))}"
        )
    return given


def _head_bits(dimensions: Geometry, format: CheckpointFormat, given: int | None) -> int:
    allowed = _HEAD_BITS[format]
    if format == "gptq" and dimensions.vocab % _HEAD_ROWS:
        allowed = (UNQUANTIZED_BITS,)
    if given is None:
        return allowed[0]
    if given not in allowed:
        raise OmniError(
            f"--head-bits {given}: expected {' or '.join(map(str, sorted(allowed)))} with --format {format}"
        )
    return given
