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
from dataclasses import asdict, dataclass
from statistics import NormalDist

import torch

CONFIDENCE = 0.975
BLOCK_TOKENS = 64
KL_RATIO_LIMIT = 1.5
DISAGREEMENT_RATIO_LIMIT = 1.5
# A reference whose best logit leads the second by more than this must never be contradicted.
SAFE_MARGIN = 0.5


class ReferenceLogits:
    """Logits fp32 `[windows, positions, vocabulary]` of the reference with what every comparison reuses."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.shape = (logits.shape[0], logits.shape[1])
        self._log_total = torch.stack([window.double().logsumexp(-1) for window in logits])
        best = logits.topk(2, dim=-1)
        self.top1 = best.indices[..., 0]
        self.margin = best.values[..., 0] - best.values[..., 1]

    def log_probabilities(self, window: int, positions: slice) -> torch.Tensor:
        """float64 `[positions, vocabulary]`."""
        return self.logits[window, positions].double() - self._log_total[window, positions, None]


class Divergence:
    """Per-token divergence of one path from the reference, filled as logits arrive.

    `kl` float64 and `disagrees` bool are `[windows, positions]`; `scored` marks the positions seen. A
    position scored twice or logits that are not finite raise ValueError.
    """

    def __init__(self, reference: ReferenceLogits) -> None:
        self.reference = reference
        self.kl = torch.zeros(reference.shape, dtype=torch.float64)
        self.disagrees = torch.zeros(reference.shape, dtype=torch.bool)
        self.scored = torch.zeros(reference.shape, dtype=torch.bool)

    def add(self, window: int, start: int, logits: torch.Tensor) -> None:
        """Score `logits [n, vocabulary]` of positions `start .. start + n` of `window`."""
        positions = slice(start, start + logits.shape[0])
        vocabulary = self.reference.logits.shape[-1]
        if logits.shape[-1] != vocabulary:
            raise ValueError(f"expected logits of {vocabulary} words, got {logits.shape[-1]}")
        if self.scored[window, positions].any():
            raise ValueError(f"window {window}: positions {positions.start}..{positions.stop} scored twice")
        logits = logits.double()
        if not logits.isfinite().all():
            raise ValueError(f"window {window}: logits at {positions.start}..{positions.stop} not finite")
        expected = self.reference.log_probabilities(window, positions)
        difference = expected - logits.log_softmax(-1)
        self.kl[window, positions] = (expected.exp() * difference).sum(-1)
        self.disagrees[window, positions] = logits.argmax(-1) != self.reference.top1[window, positions]
        self.scored[window, positions] = True


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
