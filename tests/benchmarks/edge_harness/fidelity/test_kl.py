"""The judge of the proof, on small made-up logits."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from benchmarks.edge_harness.fidelity import kl

WINDOWS, POSITIONS, VOCABULARY = 4, 256, 50


@pytest.fixture
def reference() -> kl.ReferenceLogits:
    generator = torch.Generator().manual_seed(0)
    return kl.ReferenceLogits(2 * torch.randn(WINDOWS, POSITIONS, VOCABULARY, generator=generator))


def noisy(reference: kl.ReferenceLogits, scale: float, seed: int = 1) -> kl.Divergence:
    generator = torch.Generator().manual_seed(seed)
    divergence = kl.Divergence(reference)
    for window, logits in enumerate(reference.logits):
        divergence.add(window, 0, logits + scale * torch.randn(logits.shape, generator=generator))
    return divergence


def test_divergence_is_the_definition(reference: kl.ReferenceLogits) -> None:
    measured = noisy(reference, 0.3)
    logits = reference.logits[2] + 0.3 * torch.randn(
        WINDOWS, POSITIONS, VOCABULARY, generator=torch.Generator().manual_seed(1)
    )[2]  # fmt: skip
    p, q = reference.logits[2].double().softmax(-1), logits.double().softmax(-1)
    torch.testing.assert_close(measured.kl[2], (p * (p / q).log()).sum(-1))
    assert measured.disagrees[2].tolist() == (p.argmax(-1) != q.argmax(-1)).tolist()


def test_equal_logits_diverge_by_nothing(reference: kl.ReferenceLogits) -> None:
    same = noisy(reference, 0.0)
    assert same.kl.abs().max().item() < 1e-12
    assert not same.disagrees.any()


def test_adding_a_constant_changes_nothing(reference: kl.ReferenceLogits) -> None:
    divergence = kl.Divergence(reference)
    divergence.add(0, 0, reference.logits[0] + 7.0)
    assert divergence.kl[0].abs().max().item() < 1e-6


def test_parts_add_up(reference: kl.ReferenceLogits) -> None:
    whole = noisy(reference, 0.3)
    generator = torch.Generator().manual_seed(1)
    logits = reference.logits[0] + 0.3 * torch.randn(POSITIONS, VOCABULARY, generator=generator)
    parts = kl.Divergence(reference)
    for start, stop in ((0, 1), (1, 100), (100, POSITIONS)):
        parts.add(0, start, logits[start:stop])
    torch.testing.assert_close(parts.kl[0], whole.kl[0])
    with pytest.raises(ValueError, match="scored twice"):
        parts.add(0, 99, logits[99:101])


def test_bad_logits_are_refused(reference: kl.ReferenceLogits) -> None:
    divergence = kl.Divergence(reference)
    with pytest.raises(ValueError, match="expected logits of 50 words as the reference has, got 49"):
        divergence.add(0, 0, reference.logits[0, :, :49])
    broken = reference.logits[0].clone()
    broken[3, 4] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        divergence.add(0, 0, broken)


def test_next_tokens_are_scored_where_there_is_one(reference: kl.ReferenceLogits) -> None:
    tokens = torch.randint(0, VOCABULARY, (WINDOWS, POSITIONS), generator=torch.Generator().manual_seed(5))
    known = kl.ReferenceLogits(reference.logits, tokens)
    path = kl.Divergence(known)
    half = reference.logits / 2
    for start, stop in ((0, 100), (100, POSITIONS)):
        path.add(1, start, half[1, start:stop])
    for nll, logits in ((known.nll[1], reference.logits[1]), (path.nll[1], half[1])):
        expected = torch.nn.functional.cross_entropy(logits[:-1].double(), tokens[1, 1:], reduction="none")
        torch.testing.assert_close(nll[:-1], expected)
        assert nll[-1].isnan()
    assert path.nll[0].isnan().all()


def test_a_shift_of_the_logits_costs_more_the_larger_it_is(reference: kl.ReferenceLogits) -> None:
    """The likeliest word stays the likeliest: only the divergence sees it."""
    means = []
    for shift in (0.0, 0.1, 0.2, 0.4, 0.8):
        divergence = kl.Divergence(reference)
        for window, logits in enumerate(reference.logits):
            raised = logits.clone()
            raised.scatter_add_(-1, logits.argmax(-1, keepdim=True), torch.full((POSITIONS, 1), shift))
            divergence.add(window, 0, raised)
        assert not divergence.disagrees.any()
        means.append(divergence.kl.mean().item())
    assert means[0] == pytest.approx(0, abs=1e-12)
    assert all(a < b for a, b in pairwise(means))


def test_disagreements_are_counted(reference: kl.ReferenceLogits) -> None:
    divergence = kl.Divergence(reference)
    wrong = reference.logits[0].clone()
    wrong[:10, 7] = wrong[:10].max() + 1
    already = int((reference.top1[0, :10] == 7).sum())
    divergence.add(0, 0, wrong)
    assert int(divergence.disagrees.sum()) == 10 - already


def test_verdict(reference: kl.ReferenceLogits) -> None:
    floor = noisy(reference, 0.1)
    assert kl.judge("same noise", noisy(reference, 0.1, seed=2), floor).failures == []
    worse = kl.judge("twice the noise", noisy(reference, 0.2, seed=2), floor)
    assert worse.ratio == pytest.approx(4, rel=0.25)
    assert any("x the floor's mean" in line for line in worse.failures)
    far = kl.judge("wrong", noisy(reference, 2.0, seed=2), floor)
    assert far.safe_margin_disagreements > 0
    assert far.worst_disagreement_margin > kl.SAFE_MARGIN
    assert len(far.failures) == 3


def test_verdict_covers_the_scored_tokens_only(reference: kl.ReferenceLogits) -> None:
    floor = noisy(reference, 0.1)
    tail = kl.Divergence(reference)
    for window, logits in enumerate(reference.logits):
        tail.add(window, 64, logits[64:])
    verdict = kl.judge("tail", tail, floor)
    assert verdict.tokens == WINDOWS * (POSITIONS - 64)
    assert verdict.floor_kl_mean == pytest.approx(floor.kl[:, 64:].mean().item())
    with pytest.raises(ValueError, match="does not cover"):
        kl.judge("nothing", kl.Divergence(reference), floor)
    with pytest.raises(ValueError, match="does not cover"):
        kl.judge("uncovered", floor, tail)


def test_a_few_bad_tokens_raise_the_bound() -> None:
    """The bound reacts to what the mean hides: heavy tails widen it."""
    calm = torch.full((4, 512), 1e-3, dtype=torch.float64)
    spiky = torch.zeros((4, 512), dtype=torch.float64)
    spiky[0, 100] = 1e-3 * 4 * 512
    assert spiky.mean() == pytest.approx(calm.mean())
    assert kl.upper_bound(list(calm)) == pytest.approx(1e-3)
    assert kl.upper_bound(list(spiky)) > 2.5e-3


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_bound_holds_on_correlated_tokens(correlation: float) -> None:
    """Of means of skewed, autocorrelated series, about 97.5 % (at least 93 %) lie under their bounds."""
    generator = torch.Generator().manual_seed(3)
    trials, runs, length = 400, 4, 640
    noise = torch.randn(trials, runs, length, generator=generator, dtype=torch.float64)
    series = noise.clone()
    for step in range(1, length):
        series[..., step] = (
            correlation * series[..., step - 1] + (1 - correlation**2) ** 0.5 * noise[..., step]
        )
    skewed = series.square()  # mean 1, variance 2
    held = sum(kl.upper_bound(list(trial)) >= 1.0 for trial in skewed)
    assert held / trials >= 0.93


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 7, 2.3646), (0.975, 31, 2.0395), (0.95, 9, 1.8331), (0.99, 39, 2.4258)],
)
def test_student_quantile(probability: float, freedom: int, expected: float) -> None:
    assert kl.student_quantile(probability, freedom) == pytest.approx(expected, abs=1e-3)
