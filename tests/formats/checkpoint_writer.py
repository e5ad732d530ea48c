"""Checkpoint tensors of random weights, written with numpy from the descriptions of the formats, and their
meaning in float64. Shares no code with the readers under test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

# AWQ: the column, of eight, that each nibble of a word holds, lowest nibble first.
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Codes:
    """Integer codes ``q`` [N, K], zero-points and scales [N, groups], and each column's group [K]."""

    q: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    group_of: np.ndarray
    bits: int
    group_size: int

    @classmethod
    def random(
        cls,
        n: int,
        k: int,
        group_size: int,
        *,
        bits: int = 4,
        symmetric: bool = False,
        act_order: bool = False,
        seed: int = 0,
    ) -> Codes:
        rng = np.random.default_rng([seed, n, k, group_size + 1, bits])
        columns = k if group_size == -1 else group_size
        groups = (k + columns - 1) // columns
        top = 2**bits
        zeros = np.full((n, groups), top // 2) if symmetric else rng.integers(0, top, (n, groups))
        if not symmetric:
            zeros[:, -1] = (
                np.arange(n) * 5
            ) % top  # every value, in a pattern that a permutation would break
        group_of = np.repeat(np.arange(groups), columns)[:k]
        return cls(
            q=rng.integers(0, top, (n, k)),
            zeros=zeros,
            scales=(rng.normal(0, 0.02, (n, groups)) + 0.03).astype(np.float16),
            group_of=rng.permutation(group_of) if act_order else group_of,
            bits=bits,
            group_size=group_size,
        )

    def dense(self) -> np.ndarray:
        """float64 [N, K]."""
        spread = self.group_of
        return (self.q - self.zeros[:, spread]) * self.scales.astype(np.float64)[:, spread]


def into_words(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack along the last axis, padded with zeros to whole words, first value lowest."""
    per = 32 // bits
    short = -values.shape[-1] % per
    padded = np.concatenate([values, np.zeros((*values.shape[:-1], short), values.dtype)], axis=-1)
    lanes = padded.astype(np.uint64).reshape(*padded.shape[:-1], -1, per)
    shifts = np.arange(per, dtype=np.uint64) * np.uint64(bits)
    return (lanes << shifts).sum(-1, dtype=np.uint64).astype(np.uint32).view(np.int32)


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def gptq(codes: Codes, version: str = "gptq") -> dict[str, torch.Tensor]:
    stored = codes.zeros - 1 if version == "gptq" else codes.zeros
    return {
        "qweight": tensor(into_words(codes.q, codes.bits).T),
        "qzeros": tensor(into_words((stored % 2**codes.bits).T, codes.bits)),
        "scales": tensor(codes.scales.T),
    }


def g_idx(codes: Codes) -> torch.Tensor:
    return tensor(codes.group_of.astype(np.int32))


def awq(codes: Codes) -> dict[str, torch.Tensor]:
    def interleaved(matrix: np.ndarray) -> torch.Tensor:  # [rows, N] -> words [rows, N / 8]
        eights = matrix.reshape(matrix.shape[0], -1, 8)
        return tensor(into_words(eights[..., list(AWQ_COLUMNS)].reshape(matrix.shape[0], -1), 4))

    return {
        "qweight": interleaved(codes.q.T),
        "qzeros": interleaved(codes.zeros.T),
        "scales": tensor(codes.scales.T),
    }


def compressed(codes: Codes, *, zero_points: bool) -> dict[str, torch.Tensor]:
    written = {
        "weight_packed": tensor(into_words(codes.q, codes.bits)),
        "weight_scale": tensor(codes.scales),
        "weight_shape": torch.tensor(codes.q.shape),
    }
    if zero_points:
        written["weight_zero_point"] = tensor(into_words(codes.zeros.T, codes.bits).T)
    return written
