"""The standard workload, for any engine that can be driven by token ids.

The standard library alone, and what in the harness needs no more: this file runs in the environments of the
peers. A worker gives :func:`measure` an :class:`Engine`; one process yields every metric of an arm, and what
they mean is the same for all of them:

- the prompt is exactly ``prompt_tokens`` random ids, others in every repetition, so no cache can answer;
- ``depth`` tokens are put into the KV cache before the clock starts;
- a token counts when its id is known to the caller: greedy choice is part of the time, tokenization is not;
- decode follows the prompt, so it reads a filled context. ``empty_cache`` measures it after one token
  instead, and says so.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from benchmarks.edge_harness.adapters import process_memory
from benchmarks.edge_harness.measure.process_age import process_age_s
from benchmarks.edge_harness.measure.timing import (
    MOST_WARM_UPS,
    Repetition,
    is_stable,
    speed_metrics,
    speed_samples,
)
from benchmarks.edge_harness.measure.verification_text import ids_digest, verification_ids

# Ids below are special tokens in the vocabularies of common models.
FIRST_PROMPT_ID = 16
WARM_UP_STEPS = 8
FIRST_TOKEN_PROMPT = 8
# Room for the fixed text of the verification and a token after it, in whole blocks.
LEAST_CONTEXT = 128
_OF_PROMPT = ("pp_tps", "ttft_ms")
EMPTY_CACHE_NOTE = "decode measured on an empty KV cache"


@dataclass(frozen=True)
class Work:
    """``spec.Workload`` without pydantic; the same names and defaults (a test compares them)."""

    prompt_tokens: int = 512
    decode_tokens: int = 128
    depth: int = 0
    batch: int = 1
    repeats: int = 3
    context_len: int | None = None
    empty_cache: bool = False

    @classmethod
    def from_json(cls, text: str) -> Work:
        """Raises ``ValueError`` for a name that is not a field, or a context that is too short."""
        content = json.loads(text)
        unknown = sorted(set(content) - set(cls.names()))
        if unknown:
            raise ValueError(f"--workload: {unknown[0]}: expected one of {', '.join(cls.names())}")
        work = cls(**content)
        if work.context_len is not None and work.context_len < work.needed_tokens:
            raise ValueError(
                f"--workload: context_len {work.context_len}: expected at least {work.needed_tokens}, "
                "what the workload needs"
            )
        return work

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(one.name for one in fields(cls))

    @property
    def needed_tokens(self) -> int:
        """Tokens that one sequence holds at the end."""
        return self.depth + self.prompt_tokens + self.decode_tokens

    @property
    def context_tokens(self) -> int:
        """Room of one sequence: what was asked for, else what the workload needs. Sequences of a batch that
        have their first token early may go on while the others are prefilled."""
        return self.context_len or max(LEAST_CONTEXT, self.needed_tokens + WARM_UP_STEPS + 4 * self.batch)


class Engine(Protocol):
    """What a worker makes of its engine. ``prefill`` and ``step`` return when the next token of every
    sequence (the likeliest one) is known; both append to the KV cache."""

    @property
    def vocabulary_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Without any token that the model's template would add."""

    def reset(self) -> None:
        """Forget every sequence."""

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Put tokens into the KV cache; no next token is chosen."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]: ...

    def step(self, tokens: Sequence[int]) -> list[int]: ...

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Natural log-probabilities of ``ids[1:]``, each given those before it, on an empty cache."""


@dataclass
class Phases:
    """Memory at the boundaries of a worker's life; ``mark`` is called at each."""

    marks: list[dict[str, Any]]
    age_s: Callable[[], float] = process_age_s
    read: process_memory.Read = process_memory.read_proc
    status: dict[str, dict[str, float]] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        self.status[name] = process_memory.status_mb(self.read)
        self.marks.append(
            {
                "t_s": self.age_s(),
                "name": name,
                "rss_anon_mb": self.status[name]["rss_anon"],
                "pss_anon_mb": process_memory.pss_anon_mb(self.read),
            }
        )

    def at(self, name: str) -> dict[str, Any]:
        return next(mark for mark in self.marks if mark["name"] == name)


def prompt(engine: Engine, count: int, seed: int) -> list[int]:
    """``count`` token ids that differ from seed to seed."""
    low = FIRST_PROMPT_ID if engine.vocabulary_size > 4 * FIRST_PROMPT_ID else 0
    chance = random.Random(seed)
    return [chance.randrange(low, engine.vocabulary_size) for _ in range(count)]


def repetition(
    engine: Engine,
    prompt_tokens: int,
    steps: int,
    *,
    batch: int = 1,
    depth: int = 0,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Repetition:
    """``depth`` tokens of each sequence off the clock, then its prompt and ``steps`` decode steps on it."""
    ids = [prompt(engine, depth + prompt_tokens, seed * 1009 + i) for i in range(batch)]
    engine.reset()
    if depth:
        engine.fill([one[:depth] for one in ids])
    measured = [one[depth:] for one in ids]
    start = clock()
    tokens = engine.prefill(measured)
    ends = [clock() - start]
    for _ in range(steps):
        tokens = engine.step(tokens)
        ends.append(clock() - start)
    return Repetition(prompt_tokens, batch, tuple(ends))


def warm_up(engine: Engine, work: Work, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Repeat a short run of the workload until its step time holds still; the step times in ms."""
    step_ms: list[float] = []
    prompt_tokens = 1 if work.empty_cache else work.prompt_tokens
    steps = min(WARM_UP_STEPS, work.decode_tokens - 1)
    while len(step_ms) < MOST_WARM_UPS and not is_stable(step_ms):
        seed = 1000 + len(step_ms)
        done = repetition(engine, prompt_tokens, steps, batch=work.batch, seed=seed, clock=clock)
        step_ms.append(statistics.fmean(done.intervals_ms))
    return step_ms


def measured(
    engine: Engine, work: Work, clock: Callable[[], float] = time.perf_counter
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Metrics and raw samples of the workload's repetitions."""
    steps = work.decode_tokens - 1
    filled, empty = [], []
    for number in range(1, work.repeats + 1):
        how: dict[str, Any] = {"batch": work.batch, "clock": clock}
        after_prompt = 1 if work.empty_cache else steps
        filled.append(
            repetition(engine, work.prompt_tokens, after_prompt, depth=work.depth, seed=number, **how)
        )
        if work.empty_cache:
            empty.append(repetition(engine, 1, steps, seed=-number, **how))
    metrics, samples = speed_metrics(filled), speed_samples(filled)
    if empty:
        metrics = speed_metrics(empty) | {name: metrics[name] for name in _OF_PROMPT}
        samples = speed_samples(empty) | {name: samples[name] for name in _OF_PROMPT}
    return metrics, samples


def measure(
    load: Callable[[Callable[[str], None]], Engine],
    work: Work,
    *,
    clock: Callable[[], float] = time.perf_counter,
    phases: Phases | None = None,
) -> dict[str, Any]:
    """Everything that the harness asks of an arm, but for what only the worker knows of its engine.

    ``load`` builds the engine and calls its argument with ``after import`` and ``after load``. Memory is
    watched by a thread while the engine starts and while a context is filled, never while it is timed.
    """
    phases = phases or Phases([])
    phases.mark("before import")
    with process_memory.Peak(read=phases.read) as at_start:
        engine = load(phases.mark)
        engine.reset()
        engine.prefill([prompt(engine, FIRST_TOKEN_PROMPT, 0)])
        ready_s = phases.age_s()
        warm_ups = warm_up(engine, work, clock)
    phases.mark("after warm-up")
    metrics, samples = measured(engine, work, clock)
    with process_memory.Peak(read=phases.read) as at_context:
        repetition(engine, work.context_tokens - 2, 1, batch=work.batch, seed=11, clock=clock)
    phases.mark("at context")
    if process_memory.has_children(phases.read):
        raise RuntimeError("the engine started processes: memory of one process is not that of the tree")
    before_trim = phases.status["at context"]["rss_anon"]
    process_memory.trim()
    phases.mark("after trim")
    ids = verification_ids(engine.encode)
    logprobs = engine.logprobs(ids)
    settled = phases.status["after warm-up"]
    notes = [EMPTY_CACHE_NOTE] if work.empty_cache else []
    if not is_stable(warm_ups):
        shown = ", ".join(f"{ms:.2f}" for ms in warm_ups)
        notes.append(f"the warm-up did not hold still in {len(warm_ups)} rounds: {shown} ms a step")
    return {
        **metrics,
        "ready_s": ready_s,
        "warm_up_rounds": len(warm_ups),
        "rss_anon_tree_mb": settled["rss_anon"],
        "pss_anon_tree_mb": phases.at("after warm-up")["pss_anon_mb"],
        "rss_file_tree_mb": settled["rss_file"],
        "rss_shmem_tree_mb": settled["rss_shmem"],
        "swap_tree_mb": settled["swap"],
        "peak_rss_anon_tree_mb": max(at_start.rss_anon_mb, at_context.rss_anon_mb),
        "rss_anon_at_context_mb": before_trim,
        "rss_anon_after_trim_mb": phases.status["after trim"]["rss_anon"],
        "trim_mb": before_trim - phases.status["after trim"]["rss_anon"],
        "context_tokens": work.context_tokens,
        "samples": samples | {"warm_up_step_ms": warm_ups},
        "phases": phases.marks,
        "verification": {"kind": "logprob", "value": statistics.fmean(logprobs), "of": ids_digest(ids)},
        "workload": {name: getattr(work, name) for name in Work.names()},
        "notes": notes,
    }
