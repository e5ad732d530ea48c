"""A layer's weight as often as a buffer holds it, the operator that multiplies with it, and its values."""

from __future__ import annotations

import itertools
import mmap
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vllm_omni import int4
from vllm_omni.activation import ACTIVATIONS
from vllm_omni.errors import OmniError

# How a weight is stored: packed codes, or a row-major table with the bits that it has.
TABLES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "f16": torch.float16}
PACKED = "packed"
NO_BIAS = torch.empty(0)
# A result is checked in these many rows of the weight, spread evenly, the first and the last among them.
CHECKED_ROWS = 2048


@dataclass(frozen=True)
class Weight:
    """The weight of a case. ``zeros``: ``none`` (symmetric) or ``u8``. A table has 16 bits and no groups."""

    n: int
    k: int
    bits: int
    group_size: int
    zeros: str
    stored: str = PACKED


@dataclass(frozen=True)
class Copies:
    """``views`` are equal weights at addresses of their own; ``rows`` of one of them in float64."""

    views: list[torch.Tensor]
    checked: torch.Tensor
    rows: torch.Tensor

    def relative_error(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """‖y − Wx‖ ÷ ‖Wx‖ over the checked rows, in float64."""
        expected = self.rows @ x.double()
        return float((y[self.checked].double() - expected).norm() / expected.norm())


# x ``[K]`` and one of the views.
Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def packed_weights(
    shapes: Sequence[tuple[int, int]], bits: Sequence[str], groups: Sequence[int], zeros: Sequence[str]
) -> list[Weight]:
    return [
        Weight(n, k, int(b), group, zero)
        for b, group, zero, (n, k) in itertools.product(bits, groups, zeros, shapes)
    ]


def tables(shapes: Sequence[tuple[int, int]], stored: Sequence[str]) -> list[Weight]:
    return [Weight(n, k, 16, 0, "none", s) for s, (n, k) in itertools.product(stored, shapes)]


def allocate(size: int, mapping: str) -> torch.Tensor:
    """A uint8 buffer: ``anonymous`` memory, or a mapped ``file`` as a checkpoint is."""
    if mapping == "anonymous":
        memory = mmap.mmap(-1, size)
    else:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=torch.uint8)


def store(weight: Weight) -> tuple[torch.Tensor, torch.Tensor]:
    """Random weights as bytes, and the ``[N, K]`` values that they stand for."""
    dense = torch.randn(weight.n, weight.k, generator=torch.Generator().manual_seed(1))
    if weight.stored == PACKED:
        symmetric = weight.zeros == "none"
        packed = int4.quantize(dense, group_size=weight.group_size, bits=weight.bits, symmetric=symmetric)
        return packed.data, packed.dequantize()
    table = dense.to(TABLES[weight.stored])
    return table.view(torch.uint8).view(-1), table


def fill(buffer: torch.Tensor, weight: Weight) -> Copies:
    """One weight at as many addresses as there is room for."""
    stored, values = store(weight)
    checked = torch.linspace(0, weight.n - 1, min(weight.n, CHECKED_ROWS)).long()
    count = buffer.numel() // stored.numel()
    if count == 0:
        raise OmniError(f"{weight}: {stored.numel()} bytes do not fit a buffer of {buffer.numel()}")
    views = list(buffer[: count * stored.numel()].view(count, stored.numel()))
    for view in views:
        view.copy_(stored)
    return Copies(views, checked, values[checked].double())


def multiply(weight: Weight, activation: str) -> Multiply:
    """The operator's call. ``activation`` says what packed weights are multiplied with."""
    if weight.stored == PACKED:
        linear, code = torch.ops.vllm_omni.int4_linear, ACTIVATIONS[activation]
        n, k = weight.n, weight.k
        return lambda x, view: linear(x, view, NO_BIAS, n, k, code)
    dense = torch.ops.vllm_omni.dense_linear
    return lambda x, view: dense(x, view, NO_BIAS)


def as_operand(weight: Weight, view: torch.Tensor) -> torch.Tensor:
    """The view as the operator takes it: packed bytes, or the table ``[N, K]``."""
    if weight.stored == PACKED:
        return view
    return view.view(TABLES[weight.stored]).view(weight.n, weight.k)
