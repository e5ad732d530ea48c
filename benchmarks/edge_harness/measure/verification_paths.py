"""The verification's figure, over both ways that an engine computes: a prompt at once, and token by token.

The standard library alone: this file runs in the environments of the peers. A kernel for many tokens and one
for a single token are different code; a figure of one says nothing of the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.edge_harness.measure.verification_text import ids_digest

# Between the paths' means. Rounding of activations differs by shape; a wrong kernel is far outside.
WITHIN_NATS = 0.02


class PathsDisagree(ValueError):
    """The two paths compute different models, or something that is no number."""


def verification_record(
    prefill: Sequence[float] | None, decode: Sequence[float] | None, ids: Sequence[int]
) -> dict[str, Any]:
    """``verification`` and ``verification_paths`` of a record, from the natural log-probabilities of
    ``ids[1:]``: as one prompt, and fed one token a step. A path that an engine has no way to be asked is
    ``None``, and named. Raises :class:`PathsDisagree`."""
    means: dict[str, float] = {}
    paths: dict[str, Any] = {}
    for name, values in (("prefill", prefill), ("decode", decode)):
        if values is None:
            paths["not_verified"] = name
            continue
        if len(values) != len(ids) - 1:
            raise PathsDisagree(f"{name}: expected {len(ids) - 1} log-probabilities, found {len(values)}")
        means[name] = statistics.fmean(values)
        if not math.isfinite(means[name]):
            raise PathsDisagree(f"{name}: expected finite log-probabilities, their mean is {means[name]}")
        paths[f"logprob_{name}_nats"] = means[name]
    if not means:
        raise PathsDisagree("neither prefill nor decode was verified")
    if len(means) == 2 and abs(means["prefill"] - means["decode"]) > WITHIN_NATS:
        raise PathsDisagree(
            f"prefill and decode disagree: {means['prefill']:.4f} vs {means['decode']:.4f} nats a token, "
            f"expected at most {WITHIN_NATS} apart"
        )
    value = statistics.fmean(means.values())
    return {
        "verification": {"kind": "logprob", "value": value, "of": ids_digest(ids)},
        "verification_paths": paths,
    }
