"""4- and 8-bit weights as tensors: pack them from any checkpoint format, read rows, multiply.

Needs torch alone. Every function returns a :class:`PackedWeight` whose codes, scales and zero-points are the
checkpoint's own, bit for bit; :func:`quantize` makes new ones. Bad input raises :class:`FormatError` (a
ValueError) naming the tensor, what was expected and what came.

    >>> weight = int4.from_gptq(qweight, qzeros, scales, group_size=128)
    >>> y = weight.linear(x)                          # x [..., K] -> y [..., N], in x's dtype
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
import torch

from vllm_omni import layout, ops  # noqa: F401 - `ops` defines the operators
from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import FormatError
from vllm_omni.formats import awq, compressed_tensors, ggml, gptq, round_to_nearest
from vllm_omni.formats.affine import AffineCodes
from vllm_omni.layout import Segment
from vllm_omni.native import native

__all__ = [
    "Activation",
    "FormatError",
    "PackedWeight",
    "Segment",
    "from_awq",
    "from_compressed_tensors",
    "from_gguf",
    "from_gptq",
    "load_file",
    "quantize",
]

Activation = Literal["native", "int8", "int8_32"]
_ROW_CODES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_NO_BIAS = torch.empty(0)
# Kernels read the permutation as 32-bit words.
_ALIGNMENT = 4


class PackedWeight:
    """A weight ``[N, K]`` in the packed layout: one or more segments stacked along N.

    Attributes:
        data: uint8 ``[nbytes]``, contiguous; may be a view of a mapped file. It is never copied or written.
        segments: shape, bits, group size and kinds of each segment.
    """

    __slots__ = ("_k", "_n", "data", "segments")

    def __init__(self, data: torch.Tensor) -> None:
        """Wrap packed bytes. Headers are checked, checksums are not (:meth:`validate`)."""
        if not isinstance(data, torch.Tensor) or data.dtype != torch.uint8 or data.dim() != 1:
            got = (
                f"{data.dtype} {list(data.shape)}" if isinstance(data, torch.Tensor) else type(data).__name__
            )
            raise FormatError(f"packed tensor: expected torch.uint8 [bytes], got {got}")
        if not data.is_contiguous() or data.device.type != "cpu":
            raise FormatError(
                f"packed tensor: expected contiguous bytes on the CPU, got them on {data.device}"
            )
        self.segments: tuple[Segment, ...] = layout.parse(data)
        self.data = data if data.data_ptr() % _ALIGNMENT == 0 else data.clone()
        self._n = sum(segment.n for segment in self.segments)
        self._k = self.segments[0].k

    def __repr__(self) -> str:
        kinds = ", ".join(f"{s.bits} bits in groups of {s.group_size}" for s in dict.fromkeys(self.segments))
        return f"PackedWeight([{self._n}, {self._k}], {kinds}, {self.nbytes} bytes)"

    @property
    def shape(self) -> tuple[int, int]:
        """``(N, K)``."""
        return self._n, self._k

    @property
    def bits(self) -> int:
        """4 or 8. Raises :class:`FormatError` when segments differ."""
        return self._common("bits")

    @property
    def group_size(self) -> int:
        """Columns per scale, −1 for one group per row. Raises :class:`FormatError` when segments differ."""
        return self._common("group_size")

    def _common(self, name: str) -> int:
        values = {getattr(segment, name): None for segment in self.segments}
        if len(values) > 1:
            raise FormatError(f"{name}: expected one value for all segments, got {list(values)}")
        return int(next(iter(values)))

    @property
    def nbytes(self) -> int:
        """Packed bytes: codes, scales, zero-points and headers."""
        return self.data.numel()

    def validate(self, verify: bool = True) -> None:
        """Check the headers and, with ``verify``, every section's checksum. Raises :class:`FormatError`."""
        _check(self.data, verify)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The dense weight ``[N, K]``: exact in float32, with one rounding where an offset is added."""
        return self.rows(torch.arange(self._n), dtype)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Rows ``ids`` (int64 or int32, any shape) dequantized: ``[*ids.shape, K]``, rounded once to
        ``dtype``.

        Raises :class:`FormatError` for an id outside ``0 … N − 1`` or another dtype.
        """
        if dtype not in _ROW_CODES:
            raise FormatError(f"dtype: expected bfloat16, float16 or float32, got {dtype}")
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            got = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise FormatError(f"ids: expected an int64 or int32 tensor, got {got}")
        if ids.numel():
            low, high = (int(v) for v in torch.aminmax(ids))
            if low < 0 or high >= self._n:
                raise FormatError(f"ids: expected values from 0 to {self._n - 1}, got {low} to {high}")
        return torch.ops.vllm_omni.int4_embedding(ids, self.data, self._n, self._k, _ROW_CODES[dtype])

    def linear(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, activation: Activation = "native"
    ) -> torch.Tensor:
        """``x @ weight.T + bias``.

        Args:
            x: bfloat16, float16 or float32 ``[..., K]``.
            bias: ``[N]`` in ``x``'s dtype.
            activation: ``native`` multiplies ``x`` as it is; ``int8`` rounds it to int8 with one scale per
                row and weight group (at most 128 columns), ``int8_32`` per 32 columns.

        Returns:
            ``[..., N]`` in ``x``'s dtype: fp32 sums, rounded once.

        Raises:
            FormatError: another shape or dtype.
        """
        code = ACTIVATIONS.get(activation)
        if code is None:
            raise FormatError(f"activation: expected {', '.join(ACTIVATIONS)}, got {activation!r}")
        if x.dim() < 1 or x.shape[-1] != self._k or x.dtype not in _ROW_CODES:
            raise FormatError(
                f"x: expected bfloat16, float16 or float32 [..., {self._k}], got {x.dtype} {list(x.shape)}"
            )
        if bias is None:
            bias = _NO_BIAS
        elif bias.shape != (self._n,) or bias.dtype != x.dtype:
            raise FormatError(f"bias: expected {x.dtype} [{self._n}], got {bias.dtype} {list(bias.shape)}")
        return torch.ops.vllm_omni.int4_linear(x, self.data, bias, self._n, self._k, code)

    def to_bytes(self) -> bytes:
        """The packed bytes; the same on every machine."""
        return self.data.numpy().tobytes()

    @classmethod
    def from_bytes(cls, packed: bytes | bytearray | memoryview | torch.Tensor) -> PackedWeight:
        """A weight from :meth:`to_bytes`, its checksums verified. A uint8 tensor is used in place, anything
        else is copied. Raises :class:`FormatError` for bytes that are truncated, altered, or of a newer
        version."""
        if isinstance(packed, torch.Tensor):
            data = packed
        else:
            source = memoryview(packed).cast("B")
            data = torch.empty(len(source), dtype=torch.uint8)
            memoryview(data.numpy())[:] = source
        weight = cls(data)
        weight.validate()
        return weight

    @classmethod
    def concat(cls, weights: Sequence[PackedWeight]) -> PackedWeight:
        """A fused layer: the weights stacked along N, each kept as it is. All have the same K."""
        if not weights:
            raise FormatError("weights: expected at least one, got none")
        return cls(torch.cat([weight.data for weight in weights]))


def _check(data: torch.Tensor, verify: bool) -> None:
    module = native().module
    if module is None:
        (layout.verify if verify else layout.parse)(data)
        return
    try:
        module.segments(data.numpy(), verify)
    except module.LayoutError as error:
        raise FormatError(f"packed tensor: {error}") from error


def pack(weight: AffineCodes) -> PackedWeight:
    """Lay codes, scales and zero-points out in one segment."""
    segment = layout.segment_of(weight)
    data = torch.empty(segment.nbytes, dtype=torch.uint8)
    module = native().module
    if module is None:
        layout.pack_into(data, weight)
    else:
        module.pack_into(
            data.numpy(),
            weight.codes.numpy(),
            _bit_patterns(weight.scales),
            None if weight.zeros is None else weight.zeros.contiguous().numpy(),
            None if weight.offsets is None else _bit_patterns(weight.offsets),
            None if weight.permutation is None else weight.permutation.view(torch.uint32).numpy(),
            n=segment.n,
            k=segment.k,
            bits=segment.bits,
            group_size=segment.group_size,
            scale_type=segment.scale_type,
        )
    return PackedWeight(data)


def _bit_patterns(values: torch.Tensor) -> np.ndarray:
    return values.contiguous().view(torch.uint16).numpy()


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    group_size: int,
    bits: int = 4,
    checkpoint_format: str = "gptq",
    sym: bool = True,
) -> PackedWeight:
    """Pack a GPTQ weight.

    Args:
        qweight: int32 ``[K · bits / 32, N]``, packed along K.
        qzeros: int32 ``[groups, ⌈N · bits / 32⌉]``, packed along N.
        scales: float16, bfloat16 (or float32 exact in one of them) ``[groups, N]``.
        g_idx: int32 ``[K]``: each column's group (act-order). None, sorted, or −1 throughout: in order.
        group_size: a multiple of 8, or −1 for one group per row; ``groups = ⌈K / group_size⌉``.
        bits: 4 or 8.
        checkpoint_format: ``gptq`` stores zero-points less one (0 wraps to the largest code), ``gptq_v2`` as
            they are. For a symmetric weight the stored values decide, with a warning when the label
            contradicts them.
        sym: whether every zero-point is the middle of the range.

    Raises:
        FormatError: a tensor is not as described.
    """
    return pack(
        gptq.unpack(
            qweight,
            qzeros,
            scales,
            g_idx,
            group_size=group_size,
            bits=bits,
            checkpoint_format=checkpoint_format,
            sym=sym,
        )
    )


def from_awq(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, *, group_size: int
) -> PackedWeight:
    """Pack an AWQ ("gemm") weight of 4 bits.

    Args:
        qweight: int32 ``[K, N / 8]``, eight columns to a word in AWQ's interleaved order.
        qzeros: int32 ``[groups, N / 8]``, likewise.
        scales: as for :func:`from_gptq`, ``[groups, N]``.
        group_size: a multiple of 8, or −1 for one group per row.

    Raises:
        FormatError: a tensor is not as described.
    """
    return pack(awq.unpack(qweight, qzeros, scales, group_size=group_size))


def from_compressed_tensors(
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_shape: torch.Tensor,
    weight_zero_point: torch.Tensor | None = None,
    weight_g_idx: torch.Tensor | None = None,
    *,
    group_size: int,
    bits: int | None = None,
) -> PackedWeight:
    """Pack a compressed-tensors ``pack-quantized`` weight.

    Args:
        weight_packed: int32 ``[N, ⌈K · bits / 32⌉]``, packed along K.
        weight_scale: as ``scales`` of :func:`from_gptq`, ``[N, groups]``.
        weight_shape: int64 ``[2]``: N and K.
        weight_zero_point: int32 ``[⌈N · bits / 32⌉, groups]``, packed along N; None for a symmetric weight.
        weight_g_idx: as ``g_idx`` of :func:`from_gptq`.
        group_size: a multiple of 8, or −1 for one group per row.
        bits: 4 or 8; None derives them from the width of ``weight_packed``.

    Raises:
        FormatError: a tensor is not as described.
    """
    return pack(
        compressed_tensors.unpack(
            weight_packed,
            weight_scale,
            weight_shape,
            weight_zero_point,
            weight_g_idx,
            group_size=group_size,
            bits=bits,
        )
    )


def from_gguf(raw_uint8: torch.Tensor, *, ggml_type: str, shape: tuple[int, int]) -> PackedWeight:
    """Pack a ggml tensor of type Q4_0, Q4_1 or Q8_0, exactly.

    Args:
        raw_uint8: the tensor's bytes, uint8 flat or ``[N, row bytes]``.
        ggml_type: the type's name, or a member of ``gguf.GGMLQuantizationType``.
        shape: ``(N, K)``, K a multiple of 32.

    Raises:
        FormatError: another type or size.
    """
    return pack(ggml.unpack(raw_uint8, ggml_type=ggml_type, shape=shape))


def quantize(
    weight: torch.Tensor, *, group_size: int = 128, bits: int = 4, symmetric: bool = True
) -> PackedWeight:
    """Quantize a float weight ``[N, K]`` by rounding to the nearest code, then pack it.

    Args:
        weight: float16, bfloat16, float32 or float64, finite.
        group_size: a multiple of 8, or −1 for one group per row.
        bits: 4 or 8.
        symmetric: no zero-points; otherwise one integer zero-point per row and group.

    Raises:
        FormatError: a value is not finite, or an argument is not as described.
    """
    return pack(round_to_nearest.quantize(weight, group_size=group_size, bits=bits, symmetric=symmetric))


def load_file(path: str | Path) -> dict[str, PackedWeight]:
    """The packed weights of a safetensors file, by tensor name, mapped: processes share the file's pages.

    Headers are checked, checksums are not (:meth:`PackedWeight.validate`). Raises :class:`FormatError` naming
    the file, and the tensor when one of them is not a packed weight; OSError when the file cannot be read.
    """
    weights = {}
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                try:
                    weights[name] = PackedWeight(file.get_tensor(name))
                except FormatError as error:
                    raise FormatError(f"{path}: {name}: {error}") from error
    except safetensors.SafetensorError as error:
        raise FormatError(f"{path}: expected a safetensors file: {error}") from error
    return weights
