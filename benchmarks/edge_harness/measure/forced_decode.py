"""Log-probabilities of given tokens in an engine's decode steps: one token a step, each one forced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vllm_omni.errors import OmniError

if TYPE_CHECKING:
    from benchmarks.edge_harness.measure.engine import InProcessEngine


def decode_logprobs(engine: InProcessEngine, ids: Sequence[int]) -> list[float]:
    """Natural log-probabilities of ``ids[1:]``, each from a step that computed the single token before it.

    The engine's own steps run, sampler included; its choice is replaced by the next token of ``ids``."""
    found: list[float] = []
    with _forced(engine.model_runner, ids, found):
        engine.run(ids[:1], len(ids) - 1)
    if len(found) != len(ids) - 1:
        raise OmniError(f"forced decode: expected {len(ids) - 1} steps of one token, found {len(found)}")
    return found


@contextlib.contextmanager
def _forced(runner: Any, ids: Sequence[int], found: list[float]) -> Iterator[None]:
    """``found`` gets the log-probability of each token that follows, step by step."""
    execute_model, sample = runner.execute_model, runner._sample

    def reading(*args: Any, **kwargs: Any) -> Any:
        result = execute_model(*args, **kwargs)
        state = runner.execute_model_state
        if state is not None and len(found) < len(ids) - 1:
            ran = runner.input_ids.gpu[:1].tolist()
            scheduled = sum(state.scheduler_output.num_scheduled_tokens.values())
            if scheduled != 1 or ran != [ids[len(found)]]:
                raise OmniError(f"forced decode: step {len(found)} ran {scheduled} tokens from {ran}")
            logprobs = state.logits[0].float().log_softmax(dim=-1)
            found.append(float(logprobs[ids[len(found) + 1]]))
        return result

    def forcing(*args: Any, **kwargs: Any) -> Any:
        output = sample(*args, **kwargs)
        output.sampled_token_ids[0, 0] = ids[len(found)]
        return output

    runner.execute_model, runner._sample = reading, forcing
    try:
        yield
    finally:
        del runner.execute_model, runner._sample
