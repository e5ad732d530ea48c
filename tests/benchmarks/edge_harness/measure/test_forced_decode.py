"""Decode steps that are fed given tokens, on a scripted model runner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.edge_harness.measure.forced_decode import decode_logprobs
from vllm_omni.errors import OmniError

IDS = [3, 1, 4, 1, 5]
VOCABULARY = 8


class Runner:
    """Holds a batch of one, as vLLM's runner does: the step's logits after ``execute_model``."""

    def __init__(self, tokens_a_step: int = 1) -> None:
        self.tokens_a_step = tokens_a_step
        self.input_ids = SimpleNamespace(gpu=torch.zeros(4, dtype=torch.int32))
        self.execute_model_state: Any = None

    def execute_model(self, token: int) -> None:
        self.input_ids.gpu[0] = token
        # A token makes the next number likelier than the others, by the factor e.
        logits = torch.zeros(1, VOCABULARY)
        logits[0, token + 1] = 1.0
        scheduled = SimpleNamespace(num_scheduled_tokens={"only": self.tokens_a_step})
        self.execute_model_state = SimpleNamespace(logits=logits, scheduler_output=scheduled)

    def _sample(self) -> Any:
        best = self.execute_model_state.logits[0].argmax()
        return SimpleNamespace(sampled_token_ids=best.reshape(1, 1).clone())


class Engine:
    def __init__(self, **how: Any) -> None:
        self.model_runner = Runner(**how)
        self.generated: list[int] = []

    def run(self, ids: Sequence[int], max_tokens: int) -> None:
        (token,) = ids
        for _ in range(max_tokens):
            self.model_runner.execute_model(token)
            token = int(self.model_runner._sample().sampled_token_ids[0, 0])
            self.generated.append(token)


def test_every_step_is_given_the_token_before_and_scored_on_the_next() -> None:
    engine = Engine()
    found = decode_logprobs(engine, IDS)  # type: ignore[arg-type]
    assert engine.generated == IDS[1:]
    others = math.log(VOCABULARY - 1 + math.e)
    # None of them is the number after the one before it.
    assert found == pytest.approx([-others, -others, -others, -others])
    assert decode_logprobs(Engine(), [2, 3, 4]) == pytest.approx([1 - others] * 2)  # type: ignore[arg-type]


def test_the_runner_is_its_own_again() -> None:
    engine = Engine()
    decode_logprobs(engine, IDS)  # type: ignore[arg-type]
    assert set(vars(engine.model_runner)) == {"tokens_a_step", "input_ids", "execute_model_state"}


def test_a_step_of_more_than_one_token_is_not_decode() -> None:
    engine = Engine(tokens_a_step=2)
    with pytest.raises(OmniError, match="step 0 ran 2 tokens"):
        decode_logprobs(engine, IDS)  # type: ignore[arg-type]
    assert "execute_model" not in vars(engine.model_runner)
