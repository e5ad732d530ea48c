"""The capture on a scripted engine: what it asks for on each path, and what it hands on."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.edge_harness.fidelity.logit_capture import LogitCapture

VOCABULARY = 32


class Runner:
    """A model runner whose hidden state is the token id, and whose logits at a position are one-hot there."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.execute_model_state: Any = None
        self.computed_rows = 0
        self.corrupt = False

    @property
    def model(self) -> Any:
        return SimpleNamespace(compute_logits=self._compute)

    def _compute(self, hidden: torch.Tensor) -> torch.Tensor:
        self.computed_rows += len(hidden)
        return logits_of(hidden)

    def execute_model(self, scheduled: dict[str, tuple[int, list[int]]]) -> None:
        flat = [token for _, ids in scheduled.values() for token in ids]
        if self.corrupt:
            flat[0] += 1
        self.input_ids = SimpleNamespace(gpu=torch.tensor(flat))
        self.input_batch = SimpleNamespace(
            req_ids=list(scheduled), num_computed_tokens_cpu=[start for start, _ in scheduled.values()]
        )
        last = torch.tensor([ids[-1] for _, ids in scheduled.values()])
        self.execute_model_state = SimpleNamespace(
            scheduler_output=SimpleNamespace(
                num_scheduled_tokens={name: len(ids) for name, (_, ids) in scheduled.items()}
            ),
            hidden_states=torch.tensor(flat),
            logits=logits_of(last),
        )

    def _sample(self) -> Any:
        # The engine's own choice is never the forced one.
        return SimpleNamespace(
            sampled_token_ids=torch.zeros(len(self.input_batch.req_ids), 1, dtype=torch.int64)
        )


class Engine:
    """Runs prompts whole in one step, then one token a step, as an engine does."""

    def __init__(self) -> None:
        self.runner = Runner()
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=self.runner))
        core = SimpleNamespace(
            scheduler=SimpleNamespace(max_num_scheduled_tokens=512),
            model_executor=SimpleNamespace(driver_worker=worker),
        )
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(engine_core=core))
        self.requests: list[tuple[int, int]] = []

    def generate(self, prompts: list[dict[str, list[int]]], sampling: list[Any], use_tqdm: bool) -> list[Any]:
        texts = [list(prompt["prompt_token_ids"]) for prompt in prompts]
        self.requests += [(len(text), s.max_tokens) for text, s in zip(texts, sampling, strict=True)]
        names = [f"r{i}" for i in range(len(texts))]
        self.runner.requests = {
            name: SimpleNamespace(sampling_params=s) for name, s in zip(names, sampling, strict=True)
        }
        done = [0] * len(texts)
        for _ in range(sampling[0].max_tokens):
            self.runner.execute_model({name: (done[i], texts[i][done[i] :]) for i, name in enumerate(names)})
            done = [len(text) for text in texts]
            output = self.runner._sample()
            self.runner.execute_model_state = None
            for row, text in enumerate(texts):
                text.append(int(output.sampled_token_ids[row, 0]))
        lengths = [len(prompt["prompt_token_ids"]) for prompt in prompts]
        return [
            SimpleNamespace(num_cached_tokens=0, outputs=[SimpleNamespace(token_ids=text[n:])])
            for text, n in zip(texts, lengths, strict=True)
        ]


def logits_of(ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(ids, VOCABULARY).float()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))  # type: ignore[arg-type]
    return Engine()


@pytest.fixture
def windows() -> torch.Tensor:
    return torch.randint(1, VOCABULARY - 1, (3, 12), generator=torch.Generator().manual_seed(0))


class Sink:
    """The logits by window and position; each comes once."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], torch.Tensor] = {}

    def __call__(self, window: int, start: int, logits: torch.Tensor) -> None:
        for offset, row in enumerate(logits):
            assert (window, start + offset) not in self.rows
            self.rows[window, start + offset] = row


def test_both_paths_see_every_position_of_the_right_tokens(engine: Engine, windows: torch.Tensor) -> None:
    for path in ("prefill", "decode"):
        sink = Sink()
        getattr(LogitCapture(engine, windows), path)([0, 2], sink)  # type: ignore[arg-type]
        assert sink.rows.keys() == {(window, position) for window in (0, 2) for position in range(12)}
        for (window, position), row in sink.rows.items():
            assert int(row.argmax()) == int(windows[window, position]), path


def test_prefill_is_one_step_and_decode_one_token_a_step(engine: Engine, windows: torch.Tensor) -> None:
    capture = LogitCapture(engine, windows)  # type: ignore[arg-type]
    prefill = capture.prefill([0, 1], Sink())
    assert engine.requests == [(12, 1), (12, 1)]
    assert prefill.steps == [{0: 12, 1: 12}]
    # All rows but each prompt's last go through the model's own head.
    assert engine.runner.computed_rows == 22
    engine.requests.clear()
    decode = capture.decode([0, 1], Sink())
    assert engine.requests == [(1, 12), (1, 12)]
    assert decode.steps == [{0: 1, 1: 1}] * 12
    # In decode the engine computes every row itself.
    assert engine.runner.computed_rows == 22


def test_the_engine_is_put_back(engine: Engine, windows: torch.Tensor) -> None:
    LogitCapture(engine, windows).prefill([0], Sink())  # type: ignore[arg-type]
    assert "execute_model" not in vars(engine.runner)
    assert "_sample" not in vars(engine.runner)


def test_other_tokens_than_those_forced_are_an_error(engine: Engine, windows: torch.Tensor) -> None:
    engine.runner.corrupt = True
    with pytest.raises(AssertionError, match="window 1: the engine ran other tokens"):
        LogitCapture(engine, windows).prefill([1], Sink())  # type: ignore[arg-type]


def test_an_engine_that_follows_its_own_choice_is_an_error(
    engine: Engine, windows: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = LogitCapture(engine, windows)  # type: ignore[arg-type]
    monkeypatch.setattr(capture, "_rows", lambda scheduled: [])
    with pytest.raises(AssertionError, match="did not follow the forced tokens"):
        capture.decode([0], Sink(), tokens=3)
