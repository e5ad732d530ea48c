"""Greedy continuations of a build against those of its own bf16: where do they part?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.edge_harness.fidelity.reference import Decoder

if TYPE_CHECKING:
    from vllm import LLM


@dataclass(frozen=True)
class Continuation:
    """One prompt. ``first_divergence`` is the number of new tokens before the first that differs; None for an
    exact match. ``margin`` is the lead there, in logits of the exact weights, of the expected token over the
    one found: near 0 it was a tie, below 0 the exact weights side with the build."""

    prompt: str
    prompt_tokens: int
    expected: list[int]
    found: list[int]
    first_divergence: int | None
    margin: float | None


def compare(
    prompt: str, prompt_ids: list[int], expected: list[int], found: list[int], judge: Decoder | None = None
) -> Continuation:
    """``judge`` gives the margin. Raises ``ValueError`` for another length."""
    if len(found) != len(expected):
        raise ValueError(f"{prompt}: expected {len(expected)} new tokens, found {len(found)}")
    pairs = enumerate(zip(expected, found, strict=True))
    first = next((index for index, (a, b) in pairs if a != b), None)
    margin = None
    if first is not None and judge is not None:
        logits = judge.logits(torch.tensor([prompt_ids + expected[:first]]))[0, -1]
        margin = float(logits[expected[first]] - logits[found[first]])
    return Continuation(prompt, len(prompt_ids), expected, found, first, margin)


def summary(continuations: list[Continuation]) -> dict[str, Any]:
    """``mean_prefix``: mean share of the new tokens before the first that differs."""
    shares = [
        1.0 if c.first_divergence is None else c.first_divergence / len(c.expected) for c in continuations
    ]
    return {
        "prompts": len(continuations),
        "new_tokens": len(continuations[0].expected),
        "exact_matches": sum(c.first_divergence is None for c in continuations),
        "mean_prefix": sum(shares) / len(shares),
        "detail": [asdict(c) for c in continuations],
    }


def continue_in_engine(llm: LLM, prompts: dict[str, list[int]], count: int) -> dict[str, list[int]]:
    """The engine's ``count`` greedy tokens after each prompt, one prompt at a time."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
    found = {}
    for name, ids in prompts.items():
        (output,) = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        found[name] = list(output.outputs[0].token_ids)
    return found
