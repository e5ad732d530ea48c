"""How an engine is driven, on a scripted one: exact tokens, depth, batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.edge_harness.measure import engine as engine_module
from benchmarks.edge_harness.measure.engine import InProcessEngine, engine_arguments
from tests.benchmarks.edge_harness.measure.test_step_bytes import folder
from vllm_omni.errors import OmniError


class ScriptedEngine(InProcessEngine):
    """Computes nothing; schedules as vLLM does: first come, first served, within the budget of a step."""

    def __init__(self, budget: int = 8, vocabulary: int = 1000, max_model_len: int = 64) -> None:
        self.arguments = {"max_model_len": max_model_len}
        self._requests = 0
        self._vocabulary = vocabulary
        self.live: dict[str, Any] = {}
        self.steps: list[int] = []
        self.prompts: list[list[int]] = []
        self.config = SimpleNamespace(long_prefill_token_threshold=0)
        self.fake_scheduler = SimpleNamespace(
            max_num_scheduled_tokens=budget, scheduler_config=self.config, requests=self.live
        )

    @property
    def scheduler(self) -> Any:
        return self.fake_scheduler

    @property
    def vocabulary_size(self) -> int:
        return self._vocabulary

    def add(self, ids: Any, max_tokens: int, **sampling: Any) -> str:
        self._requests += 1
        name = f"measure-{self._requests}"
        self.prompts.append(list(ids))
        self.live[name + "-suffix"] = SimpleNamespace(
            name=name, prompt=len(ids), num_computed_tokens=0, left=max_tokens
        )
        return name

    def step(self) -> list[Any]:
        budget = self.fake_scheduler.max_num_scheduled_tokens
        outputs, computed = [], 0
        for request in list(self.live.values()):
            wanted = max(1, request.prompt - request.num_computed_tokens)
            threshold = self.config.long_prefill_token_threshold
            count = min(wanted, budget, threshold or wanted)
            if not count:
                break
            budget -= count
            computed += count
            request.num_computed_tokens += count
            if request.num_computed_tokens >= request.prompt:
                request.left -= 1
                outputs.append(
                    SimpleNamespace(request_id=request.name, outputs=[SimpleNamespace(token_ids=[1])])
                )
                if not request.left:
                    del self.live[request.name + "-suffix"]
        self.steps.append(computed)
        return outputs

    def abort(self, names: Any) -> None:
        for name in names:
            self.live.pop(name + "-suffix", None)


def test_a_prompt_in_chunks_and_the_steps_after_it() -> None:
    engine = ScriptedEngine(budget=8)
    done = engine.repetition(20, 3, seed=1)
    assert engine.steps == [8, 8, 4, 1, 1, 1]
    assert len(done.intervals_ms) == 3
    assert (done.prompt_tokens, done.batch) == (20, 1)
    assert not engine.live


def test_depth_is_filled_to_the_token_before_the_clock_starts() -> None:
    engine = ScriptedEngine(budget=8)
    engine.repetition(4, 2, depth=11, seed=1)
    assert engine.steps == [8, 3, 4, 1, 1]
    assert engine.config.long_prefill_token_threshold == 0


def test_sequences_of_a_batch_fill_their_depth_in_step() -> None:
    engine = ScriptedEngine(budget=8)
    engine.repetition(4, 1, batch=2, depth=6, seed=1)
    # Four tokens of each, two of each; then both prompts; then a token of each.
    assert engine.steps == [8, 4, 8, 2]


def test_whoever_is_first_decodes_until_the_last_has_its_token() -> None:
    engine = ScriptedEngine(budget=8)
    done = engine.repetition(8, 2, batch=3, seed=1)
    assert engine.steps[-2:] == [3, 3]
    assert done.batch == 3


def test_every_repetition_and_sequence_has_other_ids() -> None:
    engine = ScriptedEngine(budget=64)
    engine.repetition(30, 1, batch=2, seed=1)
    engine.repetition(30, 1, batch=2, seed=2)
    assert len({tuple(prompt) for prompt in engine.prompts}) == 4
    assert min(min(prompt) for prompt in engine.prompts) >= engine_module.FIRST_PROMPT_ID
    assert max(max(prompt) for prompt in engine.prompts) < 1000


def test_a_sequence_that_ended_early_is_no_measurement() -> None:
    engine = ScriptedEngine(budget=8, max_model_len=10)
    with pytest.raises(OmniError, match="found it ended"):
        engine.repetition(8, 5, seed=1)


def test_each_step_replaces_the_step_and_at_end_sees_the_sequences_alive() -> None:
    engine = ScriptedEngine(budget=8)
    seen = []

    def twice() -> None:
        engine.step()
        engine.step()

    engine.repetition(
        8,
        2,
        seed=1,
        each_step=twice,
        at_end=lambda: seen.append(next(iter(engine.live.values())).num_computed_tokens),
    )
    assert seen == [12]


def test_arguments_hold_exactly_the_sequences(tmp_path: Path) -> None:
    model = folder(tmp_path / "m", ["model.layers.0.q_proj.weight"], max_position_embeddings=4096)
    arguments = engine_arguments(model, 1000, 2)
    # 2 x 1000 tokens are 16 blocks of 128, and vLLM's 2; 384 bytes a token.
    assert arguments["kv_cache_memory_bytes"] == 18 * 128 * 384
    assert arguments["max_model_len"] == 1000
    assert arguments["max_num_seqs"] == 2
    assert arguments["enable_prefix_caching"] is False


@pytest.mark.parametrize(
    ("extra", "token_bytes"), [({"kv_cache_dtype": "fp8"}, 192), ({"dtype": "float32"}, 768)]
)
def test_the_cache_holds_the_sequences_in_its_own_type(
    tmp_path: Path, extra: dict[str, str], token_bytes: int
) -> None:
    model = folder(tmp_path / "m", ["model.layers.0.q_proj.weight"], max_position_embeddings=4096)
    arguments = engine_arguments(model, 1000, 2, extra)
    assert arguments["kv_cache_memory_bytes"] == 18 * 128 * token_bytes


def test_arguments_of_the_caller_win(tmp_path: Path) -> None:
    model = folder(tmp_path / "m", ["model.layers.0.q_proj.weight"], max_position_embeddings=4096)
    extra = {"kv_cache_memory_bytes": 1 << 30, "enable_prefix_caching": True, "max_num_batched_tokens": 64}
    assert engine_arguments(model, 1000, 1, extra).items() >= extra.items()


def test_a_context_beyond_the_model_is_refused(tmp_path: Path) -> None:
    model = folder(tmp_path / "m", ["model.layers.0.q_proj.weight"])
    with pytest.raises(OmniError, match="a context of 65 tokens, expected at most the model's 64"):
        engine_arguments(model, 65, 1)
