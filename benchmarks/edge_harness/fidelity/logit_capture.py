"""Full-vocabulary logits of vLLM's own path, taken in process while it runs forced tokens.

The engine must run in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`). Two methods of its model runner
are wrapped for the time of a capture:

* `execute_model`: after a step the runner holds the hidden states of every scheduled token and the logits of
  each request's last one. Those logits are taken as they are; the other rows go through the model's own
  `compute_logits`. Rows are identified by the runner's batch, and the tokens it holds are checked against
  the forced ones, so a wrong mapping cannot go unnoticed.
* `_sample`: the real sampler runs, then its choice is replaced by the forced next token.

`prompt_logprobs` is not used: requesting it makes vLLM ignore the prefix cache, and it would cover
neither decode nor the tokens after a cached prefix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vllm import LLM

Sink = Callable[[int, int, torch.Tensor], None]


@dataclass
class Trace:
    """What the engine did: for every step, the tokens it ran of every window; cached tokens per window."""

    steps: list[dict[int, int]] = field(default_factory=list)
    cached_tokens: dict[int, int] = field(default_factory=dict)

    def steps_of(self, window: int) -> list[int]:
        """Tokens of `window` in each step that ran some."""
        return [step[window] for step in self.steps if window in step]

    @property
    def batch_sizes(self) -> set[int]:
        """Numbers of requests that ran together."""
        return {len(step) for step in self.steps}


class LogitCapture:
    """Runs token windows through an in-process `LLM` and hands every position's logits to a sink."""

    def __init__(self, llm: LLM, windows: torch.Tensor) -> None:
        core = llm.llm_engine.engine_core.engine_core
        self._llm = llm
        self._scheduler = core.scheduler
        self._runner = core.model_executor.driver_worker.worker.model_runner
        self._windows = windows
        self._step: dict[str, int] = {}

    @property
    def model(self) -> torch.nn.Module:
        """The model that the engine runs."""
        return self._runner.get_model()

    def prefill(self, windows: list[int], sink: Sink, *, tokens: int | None = None) -> Trace:
        """Run the first `tokens` (default: all) of `windows` as prompts, all submitted at once."""
        return self._run({window: self._tokens(window)[:tokens] for window in windows}, 1, sink)

    def decode(self, windows: list[int], sink: Sink, *, tokens: int | None = None) -> Trace:
        """Run `windows` together, one token a step: a prompt of one token, every later one forced."""
        length = len(self._windows[windows[0]][:tokens])
        return self._run({window: self._tokens(window)[:1] for window in windows}, length, sink)

    @contextlib.contextmanager
    def step_budget(self, tokens: int) -> Iterator[None]:
        """Let the scheduler run at most `tokens` tokens a step, as a small `max_num_batched_tokens` does."""
        before = self._scheduler.max_num_scheduled_tokens
        self._scheduler.max_num_scheduled_tokens = tokens
        try:
            yield
        finally:
            self._scheduler.max_num_scheduled_tokens = before

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM refused to reset its prefix cache")

    def _tokens(self, window: int) -> list[int]:
        return self._windows[window].tolist()

    def _run(self, prompts: dict[int, list[int]], new_tokens: int, sink: Sink) -> Trace:
        from vllm import SamplingParams

        trace = Trace()
        sampling = [
            SamplingParams(
                temperature=0.0,
                max_tokens=new_tokens,
                ignore_eos=True,
                detokenize=False,
                extra_args={"window": window},
            )
            for window in prompts
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts.values()]
        with self._hooks(sink, trace):
            outputs = self._llm.generate(requests, sampling, use_tqdm=False)
        for window, output in zip(prompts, outputs, strict=True):
            trace.cached_tokens[window] = output.num_cached_tokens or 0
            forced = self._tokens(window)[len(prompts[window]) :][:new_tokens]
            if list(output.outputs[0].token_ids)[: len(forced)] != forced:
                raise AssertionError(f"window {window}: the engine did not follow the forced tokens")
        return trace

    @contextlib.contextmanager
    def _hooks(self, sink: Sink, trace: Trace) -> Iterator[None]:
        runner = self._runner
        execute_model, sample = runner.execute_model, runner._sample

        def capturing_execute_model(*args: Any, **kwargs: Any) -> Any:
            result = execute_model(*args, **kwargs)
            if runner.execute_model_state is not None:
                self._capture(sink, trace)
            return result

        def forcing_sample(*args: Any, **kwargs: Any) -> Any:
            output = sample(*args, **kwargs)
            for row, (window, start, count) in enumerate(self._rows(self._step)):
                following = self._windows[window][start + count : start + count + 1]
                if len(following):
                    output.sampled_token_ids[row, 0] = following[0]
            return output

        runner.execute_model, runner._sample = capturing_execute_model, forcing_sample
        try:
            yield
        finally:
            del runner.execute_model, runner._sample

    def _rows(self, scheduled: dict[str, int]) -> list[tuple[int, int, int]]:
        """(window, first position, tokens) of every request, in the order of the batch's rows."""
        batch = self._runner.input_batch
        return [
            (
                self._runner.requests[request].sampling_params.extra_args["window"],
                int(batch.num_computed_tokens_cpu[row]),
                scheduled[request],
            )
            for row, request in enumerate(batch.req_ids)
        ]

    @torch.inference_mode()
    def _capture(self, sink: Sink, trace: Trace) -> None:
        runner = self._runner
        state = runner.execute_model_state
        # `_sample` runs after the runner has cleared its state.
        self._step = dict(state.scheduler_output.num_scheduled_tokens)
        rows = self._rows(self._step)
        trace.steps.append({window: count for window, _, count in rows})
        first = 0
        for row, (window, start, count) in enumerate(rows):
            expected = self._windows[window][start : start + count].tolist()
            ran = runner.input_ids.gpu[first : first + count].tolist()
            if ran != expected:
                raise AssertionError(f"window {window}: the engine ran other tokens than those forced")
            if count > 1:
                earlier = runner.model.compute_logits(state.hidden_states[first : first + count - 1])
                sink(window, start, earlier)
            sink(window, start + count - 1, state.logits[row : row + 1])
            first += count
