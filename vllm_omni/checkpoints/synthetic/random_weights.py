"""Random weights that depend on the seed and the tensor's name alone.

Random bits select from a table of 65,536 normal quantiles, so a weight is the same on every machine, whatever
vector instructions or library versions it has: numpy guarantees the bit streams of its generators, and the
table's entries are rounded far above the precision of the quantile function. Every value is exact in bfloat16
and in float16: a checkpoint in either holds the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch

from vllm_omni.checkpoints.synthetic.geometries import Geometry, Tensor

_ENTRIES = 1 << 16
# Elements generated at a time: what is made of them stays in the cache. A multiple of four.
_PIECE = 1 << 16
# The smallest step of float16.
_FLOAT16_STEP = 2.0**-24
_NORM_DEVIATION = 0.1
# Logits have about this standard deviation: the normalised hidden state has a mean square of 1.
_LOGIT_DEVIATION = 2.0


def weight(tensor: Tensor, geometry: Geometry, seed: int) -> torch.Tensor:
    """The tensor in bfloat16. Peak memory is one and a bit of its own size."""
    table = _bit_patterns(*_distribution(tensor, geometry))
    generator = np.random.SFC64(_entropy(tensor.name, seed))
    values = np.empty(tensor.elements, dtype=np.int16)
    for start in range(0, tensor.elements, _PIECE):
        count = min(_PIECE, tensor.elements - start)
        words = generator.random_raw(-(-count // 4))
        # Little-endian on purpose: the first weight is the lowest 16 bits of the first word.
        indices = words.astype("<u8", copy=False).view("<u2")[:count].astype(np.intp)
        table.take(indices, out=values[start : start + count], mode="clip")
    return torch.from_numpy(values).view(torch.bfloat16).view(tensor.shape)


def _entropy(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest(), "little")


def _distribution(tensor: Tensor, geometry: Geometry) -> tuple[float, float]:
    """Mean and standard deviation: outputs of a linear layer have the scale of its normalised input, what
    the layers add to the residual stream stays of that scale together, and logits spread over a few nats."""
    if tensor.role == "norm":
        return 1.0, _NORM_DEVIATION
    inputs = tensor.shape[1]
    if tensor.role in ("table", "head"):
        return 0.0, _LOGIT_DEVIATION / math.sqrt(inputs)
    if tensor.role == "residual":
        return 0.0, 1 / math.sqrt(inputs * 2 * geometry.layers)
    return 0.0, 1 / math.sqrt(inputs)


@cache
def _quantiles() -> npt.NDArray[np.float64]:
    upper = [NormalDist().inv_cdf((i + 0.5) / _ENTRIES) for i in range(_ENTRIES // 2, _ENTRIES)]
    return np.concatenate([-np.array(upper[::-1]), np.array(upper)])


@cache
def _bit_patterns(mean: float, deviation: float) -> npt.NDArray[np.int16]:
    values = torch.from_numpy(mean + deviation * _quantiles()).to(torch.bfloat16).double()
    # Below float16's normal range bfloat16 is finer than float16.
    values = (values / _FLOAT16_STEP).round_() * _FLOAT16_STEP
    return values.to(torch.bfloat16).view(torch.int16).numpy()
