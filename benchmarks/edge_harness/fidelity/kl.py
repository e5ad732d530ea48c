"""Divergence of a path's logits from the reference's, token by token, and the verdict over them.

KL(reference || path) over the full vocabulary, in float64. The mean comes with an upper confidence bound
by the method of batch means: neighbouring tokens are correlated, so the scored positions of every window
are cut into contiguous blocks of BLOCK_TOKENS (blocks never span windows), block means are treated as the
samples of a one-sided Student t interval of 97.5 %, and the standard error is inflated by
sqrt((1 + r) / (1 - r)) when the lag-1 correlation r of neighbouring block means is positive. The method is
meant for correlations that fade within a block; the tests state the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import NormalDist

import torch

from vllm_omni.errors import OmniError

CONFIDENCE = 0.975
BLOCK_TOKENS = 64
KL_RATIO_LIMIT = 1.5
DISAGREEMENT_RATIO_LIMIT = 1.5
# A reference whose best logit leads the second by more than this must never be contradicted.
SAFE_MARGIN = 0.5
# Positions scored at a time: float64 logits of a whole window would take gigabytes.
_PIECE_POSITIONS = 64


class ReferenceLogits:
    """Logits fp32 `[windows, positions, vocabulary]` of the reference with what every comparison reuses.

    With the `tokens [windows, positions]` that were forced, `nll` float64 `[windows, positions]` is the
    negative log-probability of each position's next token; the last position has none and is NaN.
    """

    def __init__(self, logits: torch.Tensor, tokens: torch.Tensor | None = None) -> None:
        self.logits = logits
        self.shape = (logits.shape[0], logits.shape[1])
        self.tokens = tokens
        self._log_total = torch.stack([_log_total(window) for window in logits])
        best = [window.topk(2, dim=-1) for window in logits]
        self.top1 = torch.stack([top.indices[..., 0] for top in best])
        self.margin = torch.stack([top.values[..., 0] - top.values[..., 1] for top in best])
        self.nll = torch.full(self.shape, math.nan, dtype=torch.float64)
        if tokens is not None:
            for window in range(self.shape[0]):
                following = tokens[window, 1:, None]
                picked = logits[window, :-1].gather(-1, following).squeeze(-1).double()
                self.nll[window, :-1] = self._log_total[window, :-1] - picked

    def log_probabilities(self, window: int, positions: slice) -> torch.Tensor:
        """float64 `[positions, vocabulary]`."""
        return self.logits[window, positions].double() - self._log_total[window, positions, None]


class Divergence:
    """Per-token divergence of one path from the reference, filled as logits arrive.

    `kl` and `nll` float64 and `disagrees` bool are `[windows, positions]`; `scored` marks the positions seen.
    A position scored twice or logits that are not finite raise ValueError, another vocabulary `OmniError`.
    """

    def __init__(self, reference: ReferenceLogits) -> None:
        self.reference = reference
        self.kl = torch.zeros(reference.shape, dtype=torch.float64)
        self.nll = torch.full(reference.shape, math.nan, dtype=torch.float64)
        self.disagrees = torch.zeros(reference.shape, dtype=torch.bool)
        self.scored = torch.zeros(reference.shape, dtype=torch.bool)

    def add(self, window: int, start: int, logits: torch.Tensor) -> None:
        """Score `logits [n, vocabulary]` of positions `start .. start + n` of `window`."""
        positions = slice(start, start + logits.shape[0])
        vocabulary = self.reference.logits.shape[-1]
        if logits.shape[-1] != vocabulary:
            raise VocabularyError(
                f"expected logits of {vocabulary} words as the reference has, got {logits.shape[-1]}"
            )
        if self.scored[window, positions].any():
            raise ValueError(f"window {window}: positions {positions.start}..{positions.stop} scored twice")
        for piece in _pieces(logits.shape[0]):
            self._add_piece(window, slice(start + piece.start, start + piece.stop), logits[piece].double())

    def _add_piece(self, window: int, positions: slice, logits: torch.Tensor) -> None:
        if not logits.isfinite().all():
            raise ValueError(f"window {window}: logits at {positions.start}..{positions.stop} not finite")
        expected = self.reference.log_probabilities(window, positions)
        found = logits.log_softmax(-1)
        self.kl[window, positions] = (expected.exp() * (expected - found)).sum(-1)
        self.disagrees[window, positions] = logits.argmax(-1) != self.reference.top1[window, positions]
        self.scored[window, positions] = True
        if self.reference.tokens is not None:
            following = self.reference.tokens[window, positions.start + 1 : positions.stop + 1]
            count = len(following)
            self.nll[window, positions.start : positions.start + count] = (
                -found[:count].gather(-1, following[:, None]).squeeze(-1)
            )


class VocabularyError(ValueError, OmniError):
    """Logits of another vocabulary than the reference's."""


def _pieces(count: int) -> Iterator[slice]:
    for start in range(0, count, _PIECE_POSITIONS):
        yield slice(start, min(start + _PIECE_POSITIONS, count))


def _log_total(window: torch.Tensor) -> torch.Tensor:
    return torch.cat([window[piece].double().logsumexp(-1) for piece in _pieces(window.shape[0])])


@dataclass(frozen=True)
class Verdict:
    """A path against its floor over the same tokens. KL in nats; `ratio` is `kl_bound / floor_kl_mean`."""

    path: str
    tokens: int
    kl_mean: float
    kl_bound: float
    floor_kl_mean: float
    ratio: float
    disagreements: int
    floor_disagreements: int
    safe_margin_disagreements: int
    worst_disagreement_margin: float

    @property
    def failures(self) -> list[str]:
        """What is beyond the limits, one line each; empty when the path passes."""
        lines = []
        if not self.ratio <= KL_RATIO_LIMIT:
            lines.append(f"KL bound {self.kl_bound:.3e} is {self.ratio:.2f} x the floor's mean")
        if self.disagreements > DISAGREEMENT_RATIO_LIMIT * self.floor_disagreements:
            lines.append(f"{self.disagreements} top-1 disagreements, floor {self.floor_disagreements}")
        if self.safe_margin_disagreements:
            lines.append(f"{self.safe_margin_disagreements} disagreements at a margin over {SAFE_MARGIN}")
        return lines

    def record(self) -> dict[str, object]:
        """For the artifact."""
        return {**asdict(self), "failures": self.failures}


def judge(path: str, measured: Divergence, floor: Divergence) -> Verdict:
    """Compare `measured` with `floor` over the tokens `measured` scored (the floor must have scored them)."""
    scored = measured.scored
    if not scored.any() or (scored & ~floor.scored).any():
        raise ValueError(f"{path}: the floor does not cover the scored tokens, or there are none")
    kl_mean = measured.kl[scored].mean().item()
    floor_kl_mean = floor.kl[scored].mean().item()
    kl_bound = upper_bound([kl[mask] for kl, mask in zip(measured.kl, scored, strict=True) if mask.any()])
    contradicted = measured.disagrees & scored
    margins = measured.reference.margin[contradicted]
    return Verdict(
        path=path,
        tokens=int(scored.sum()),
        kl_mean=kl_mean,
        kl_bound=kl_bound,
        floor_kl_mean=floor_kl_mean,
        ratio=kl_bound / floor_kl_mean,
        disagreements=int(contradicted.sum()),
        floor_disagreements=int((floor.disagrees & scored).sum()),
        safe_margin_disagreements=int((margins > SAFE_MARGIN).sum()),
        worst_disagreement_margin=float(margins.max()) if len(margins) else 0.0,
    )


def upper_bound(windows: list[torch.Tensor]) -> float:
    """Upper confidence bound of the mean of all values; each tensor is one uninterrupted run of them."""
    blocks = [window.split(BLOCK_TOKENS) for window in windows]
    means = [torch.stack([block.mean() for block in run if len(block) == BLOCK_TOKENS]) for run in blocks]
    samples = torch.cat(means)
    count = len(samples)
    if count < 8:
        raise ValueError(f"expected at least 8 blocks of {BLOCK_TOKENS} tokens, got {count}")
    center = samples.mean()
    pairs = [(run[:-1] - center) * (run[1:] - center) for run in means]
    variance = samples.var()
    correlation = (torch.cat(pairs).mean() / variance).item() if variance > 0 else 0.0
    correlation = min(max(correlation, 0.0), 0.9)
    error = math.sqrt(variance.item() / count * (1 + correlation) / (1 - correlation))
    return torch.cat(windows).mean().item() + student_quantile(CONFIDENCE, count - 1) * error


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t by its expansion around the normal one (error under 1e-3 from 7 degrees on)."""
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
