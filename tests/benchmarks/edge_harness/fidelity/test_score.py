from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from benchmarks.edge_harness.fidelity import kl, score
from benchmarks.edge_harness.fidelity.logit_capture import Sink, Trace

WINDOWS, POSITIONS, VOCABULARY = 4, 256, 60


@pytest.fixture(scope="module")
def reference() -> kl.ReferenceLogits:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(WINDOWS, POSITIONS, VOCABULARY, generator=generator)
    tokens = torch.randint(0, VOCABULARY, (WINDOWS, POSITIONS), generator=generator)
    return kl.ReferenceLogits(logits, tokens)


def noisy(reference: kl.ReferenceLogits, scale: float, seed: int) -> kl.Divergence:
    generator = torch.Generator().manual_seed(seed)
    divergence = kl.Divergence(reference)
    for window, logits in enumerate(reference.logits):
        divergence.add(window, 0, logits + scale * torch.randn(logits.shape, generator=generator))
    return divergence


def test_the_reference_against_itself(reference: kl.ReferenceLogits) -> None:
    floor = noisy(reference, 0.1, 1)
    found = score.score("prefill", noisy(reference, 0.0, 2), floor, seed=0)
    assert found["kl_mean_nats"] == pytest.approx(0, abs=1e-12)
    assert found["top1_agreement"] == 1
    assert found["perplexity"] == pytest.approx(found["reference_perplexity"])
    assert found["perplexity_over_reference"] == pytest.approx(1)
    assert found["intervals"]["kl_over_floor"]["high"] < 1e-9
    # The last position of each window has no next token.
    assert found["tokens"] == WINDOWS * (POSITIONS - 1)


def test_figures_are_their_definitions(reference: kl.ReferenceLogits) -> None:
    measured, floor = noisy(reference, 0.3, 2), noisy(reference, 0.1, 1)
    found = score.score("decode", measured, floor, seed=0)
    kept = slice(0, POSITIONS - 1)
    assert found["kl_mean_nats"] == pytest.approx(measured.kl[:, kept].mean().item())
    agree = 1 - measured.disagrees[:, kept].double().mean().item()
    assert found["top1_agreement"] == pytest.approx(agree)
    assert found["perplexity"] == pytest.approx(math.exp(measured.nll[:, kept].mean().item()))
    ratio = measured.kl[:, kept].mean() / floor.kl[:, kept].mean()
    assert found["kl_over_floor"] == pytest.approx(ratio.item())
    assert found["floor"]["kl_mean_nats"]["value"] == pytest.approx(floor.kl[:, kept].mean().item())
    for name, figure in found["intervals"].items():
        assert figure["low"] < figure["value"] < figure["high"], name
        assert figure["value"] == found[name]


def test_more_noise_is_worse_in_every_figure(reference: kl.ReferenceLogits) -> None:
    floor = noisy(reference, 0.1, 1)
    rows = [score.score("prefill", noisy(reference, scale, 2), floor, seed=0) for scale in (0.1, 0.3, 0.9)]
    for better, worse in pairwise(rows):
        assert better["intervals"]["kl_mean_nats"]["high"] < worse["intervals"]["kl_mean_nats"]["low"]
        assert better["top1_agreement"] > worse["top1_agreement"]
        assert better["kl_p99_nats"] < worse["kl_p99_nats"]
        assert better["perplexity_over_reference"] < worse["perplexity_over_reference"]


def test_pairing_narrows_the_perplexity_ratio(reference: kl.ReferenceLogits) -> None:
    """The text's own difficulty is far larger than what the build adds, and cancels."""
    found = score.score("prefill", noisy(reference, 0.1, 2), noisy(reference, 0.1, 1), seed=0)
    alone, paired = found["intervals"]["perplexity"], found["intervals"]["perplexity_over_reference"]
    assert (paired["high"] - paired["low"]) < 0.2 * (alone["high"] - alone["low"]) / alone["value"]


class Calls:
    """A capture that only writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def prefill(self, windows: list[int], sink: Sink) -> Trace:
        self.calls.append(("prefill", windows))
        return Trace()

    def decode(self, windows: list[int], sink: Sink) -> Trace:
        self.calls.append(("decode", windows))
        return Trace()


def test_a_path_runs_all_windows_in_batches() -> None:
    calls, done = Calls(), list[tuple[int, int]]()
    traces = score.run_path(calls, "decode", 5, 2, lambda *_: None, lambda *at: done.append(at))
    assert calls.calls == [("decode", [0, 1]), ("decode", [2, 3]), ("decode", [4])]
    assert done == [(2, 5), (4, 5), (5, 5)]
    assert len(traces) == 3
    score.run_path(calls, "prefill", 2, 1, lambda *_: None)
    assert calls.calls[3:] == [("prefill", [0]), ("prefill", [1])]
