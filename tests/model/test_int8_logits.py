"""The option `activation = int8` against its own bound: int8 activations in an otherwise exact forward.

The reference has no bf16 rounding: the limit of 1.5 has to hold that as well, and a plain bf16 forward
with int8 activations lies at 1.4.

An eager engine; the compiled path and the other ways through the engine are proven with native activations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks.edge_harness.fidelity import kl
from benchmarks.edge_harness.fidelity.logit_capture import LogitCapture
from benchmarks.edge_harness.fidelity.text import TOPICS, WINDOW_TOKENS
from tests.model.engine import engine

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = [pytest.mark.model, pytest.mark.engine]

ALL = list(range(len(TOPICS)))


@pytest.fixture(scope="module")
def llm(model_folder: Path) -> Iterator[LLM]:
    options = {"omni": {"activation": "int8"}}
    with engine(model_folder, additional_config=options, enforce_eager=True) as llm:
        yield llm


def test_int8_prefill(
    llm: LLM,
    windows: torch.Tensor,
    reference: kl.ReferenceLogits,
    int8_floor: kl.Divergence,
    floor: kl.Divergence,
    record_verdict: Callable[..., None],
) -> None:
    capture = LogitCapture(llm, windows)
    divergence = kl.Divergence(reference)
    started = time.monotonic()
    trace = capture.prefill(ALL, divergence.add)
    verdict = kl.judge("int8 activations, prefill, batch 4", divergence, int8_floor)
    record_verdict(verdict, wall_s=time.monotonic() - started, steps=len(trace.steps))
    assert trace.steps == [dict.fromkeys(ALL, WINDOW_TOKENS)]
    assert verdict.tokens >= 2048
    assert verdict.ratio <= kl.KL_RATIO_LIMIT
    # int8 is really in use: it costs more than bf16 does.
    assert divergence.kl.mean() > 1.5 * floor.kl.mean()
