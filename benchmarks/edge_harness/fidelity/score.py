"""The figures of one path, with intervals, from its divergence and the floor's over the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal, Protocol

import numpy as np
import torch

from benchmarks.edge_harness.fidelity import bootstrap
from benchmarks.edge_harness.fidelity.bootstrap import Interval, block_sums, interval, mean_of
from benchmarks.edge_harness.fidelity.kl import Divergence, judge
from benchmarks.edge_harness.fidelity.logit_capture import Sink, Trace

Path = Literal["decode", "prefill"]
PATHS: tuple[Path, ...] = ("decode", "prefill")

# Columns of the block sums.
_KL, _FLOOR_KL, _AGREES, _NLL, _REFERENCE_NLL, _FLOOR_NLL = range(6)


class Capture(Protocol):
    """What runs windows through an engine; see :class:`LogitCapture`."""

    def prefill(self, windows: list[int], sink: Sink) -> Trace: ...

    def decode(self, windows: list[int], sink: Sink) -> Trace: ...


def run_path(
    capture: Capture,
    path: Path,
    windows: int,
    batch: int,
    sink: Sink,
    done: Callable[[int, int], None] = lambda windows, of: None,
) -> list[Trace]:
    """Run all ``windows`` along ``path``, ``batch`` together. ``done`` is told how many are finished, and of
    how many."""
    traces = []
    run = capture.decode if path == "decode" else capture.prefill
    for start in range(0, windows, batch):
        group = list(range(start, min(start + batch, windows)))
        traces.append(run(group, sink))
        done(group[-1] + 1, windows)
    return traces


def score(path: str, measured: Divergence, floor: Divergence, *, seed: int) -> dict[str, Any]:
    """Metrics by their names, each interval under ``intervals``, the bf16 floor's under ``floor``.

    The last position of a window has no next token: it counts for nothing here.
    """
    reference = measured.reference
    scored = measured.scored & ~reference.nll.isnan()
    columns = [measured.kl, floor.kl, (~measured.disagrees).double()]
    columns += [measured.nll, reference.nll, floor.nll]
    blocks = block_sums(columns, scored)
    floor_blocks = block_sums([floor.kl, floor.kl, (~floor.disagrees).double(), floor.nll], scored)
    kl = measured.kl[scored]
    found = {
        "kl_mean_nats": interval(blocks, mean_of(_KL), seed=seed),
        "top1_agreement": interval(blocks, mean_of(_AGREES), seed=seed),
        "perplexity": interval(blocks, _exp_mean(_NLL), seed=seed),
        # Paired by block: the text's own difficulty cancels.
        "perplexity_over_reference": interval(blocks, _exp_mean(_NLL, _REFERENCE_NLL), seed=seed),
        "kl_over_floor": interval(blocks, _ratio(_KL, _FLOOR_KL), seed=seed),
    }
    below = {
        "kl_mean_nats": interval(floor_blocks, mean_of(0), seed=seed),
        "top1_agreement": interval(floor_blocks, mean_of(2), seed=seed),
        "perplexity": interval(floor_blocks, _exp_mean(3), seed=seed),
        "perplexity_over_reference": interval(blocks, _exp_mean(_FLOOR_NLL, _REFERENCE_NLL), seed=seed),
    }
    return {
        "path": path,
        "tokens": int(scored.sum()),
        "blocks": len(blocks),
        "confidence": bootstrap.CONFIDENCE,
        **{name: figure.value for name, figure in found.items()},
        "kl_median_nats": float(kl.median()),
        "kl_p99_nats": float(torch.quantile(kl, 0.99)),
        "kl_max_nats": float(kl.max()),
        "reference_perplexity": float(np.exp(reference.nll[scored].mean().item())),
        "intervals": _as_dicts(found),
        "floor": _as_dicts(below),
        "verdict": judge(path, measured, floor).record(),
    }


def _exp_mean(column: int, minus: int | None = None) -> bootstrap.Statistic:
    def statistic(sums: bootstrap.Sums) -> bootstrap.Sums:
        total = sums[..., column] if minus is None else sums[..., column] - sums[..., minus]
        return np.exp(total / sums[..., -1])

    return statistic


def _ratio(column: int, over: int) -> bootstrap.Statistic:
    return lambda sums: sums[..., column] / sums[..., over]


def _as_dicts(figures: dict[str, Interval]) -> dict[str, dict[str, float]]:
    return {name: asdict(figure) for name, figure in figures.items()}
