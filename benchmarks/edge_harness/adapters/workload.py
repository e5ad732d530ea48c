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
from benchmarks.edge_harness.measure.verification_paths import verification_record
from benchmarks.edge_harness.measure.verification_text import verification_ids

# Ids below are special tokens in the vocabularies of common models.
FIRST_PROMPT_ID = 16
WARM_UP_STEPS = 8
FIRST_TOKEN_PROMPT = 8
# Room for the fixed text of the verification and a token after it, in whole blocks.
LEAST_CONTEXT = 128
_OF_PROMPT = ("pp_tps", "ttft_ms")
EMPTY_CACHE_NOTE = "decode measured on an empty KV cache"
# The sampling thread wants 50 looks a second; a peak may lie where it had none for this long.
LONGEST_UNSEEN_S = 0.2


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

    def prompt_logprobs(self, ids: Sequence[int]) -> list[float] | None:
        """Natural log-probabilities of ``ids[1:]``, each given those before it, on an empty cache, computed
        as a prompt is: many tokens at once. ``None``: the engine cannot be asked."""

    def step_logprobs(self, ids: Sequence[int]) -> list[float] | None:
        """The same computed as decode is: one token a step, each one given."""


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


@dataclass
class WarmUp:
    """Rounds until what is measured holds still.

    A prompt no longer than a first token's is there for decode, two tokens are there for the prompt: the
    other time is noise then and is not waited for."""

    of_prompt: bool
    of_steps: bool
    step_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, work: Work) -> WarmUp:
        of_steps = work.decode_tokens > 2
        return cls(of_prompt=work.prompt_tokens > FIRST_TOKEN_PROMPT or not of_steps, of_steps=of_steps)

    @property
    def stable(self) -> bool:
        judged = [*([self.ttft_ms] if self.of_prompt else []), *([self.step_ms] if self.of_steps else [])]
        return all(is_stable(times) for times in judged)

    @property
    def notes(self) -> list[str]:
        if self.stable:
            return []
        shown = [f"{', '.join(f'{ms:.2f}' for ms in self.step_ms)} ms a step"] if self.of_steps else []
        if self.of_prompt:
            shown.append(f"{', '.join(f'{ms:.1f}' for ms in self.ttft_ms)} ms to the first token")
        return [f"the warm-up did not hold still in {len(self.step_ms)} rounds: {'; '.join(shown)}"]

    @property
    def samples(self) -> dict[str, list[float]]:
        return {"warm_up_step_ms": self.step_ms, "warm_up_ttft_ms": self.ttft_ms}


def warm_up(engine: Engine, work: Work, clock: Callable[[], float] = time.perf_counter) -> WarmUp:
    """Repeat the prompt that is measured, at its depth, and some steps as they are measured."""
    warmed = WarmUp.of(work)
    steps = min(WARM_UP_STEPS, work.decode_tokens - 1)
    how: dict[str, Any] = {"batch": work.batch, "clock": clock}
    while len(warmed.step_ms) < MOST_WARM_UPS and not warmed.stable:
        seed = 1000 + len(warmed.step_ms)
        after_prompt = 1 if work.empty_cache else steps
        after = repetition(engine, work.prompt_tokens, after_prompt, depth=work.depth, seed=seed, **how)
        decode = repetition(engine, 1, steps, seed=-seed, **how) if work.empty_cache else after
        warmed.ttft_ms.append(after.ttft_ms)
        warmed.step_ms.append(statistics.fmean(decode.intervals_ms))
    return warmed


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
        warmed = warm_up(engine, work, clock)
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
    verified = verification_record(engine.prompt_logprobs(ids), engine.step_logprobs(ids), ids)
    settled = phases.status["after warm-up"]
    notes = [EMPTY_CACHE_NOTE] if work.empty_cache else []
    notes += warmed.notes
    if path := verified["verification_paths"].get("not_verified"):
        notes.append(f"the log-probability is not verified for {path}: the engine cannot be asked")
    peak, why_no_peak = _peak(at_start, at_context)
    return {
        **metrics,
        "ready_s": ready_s,
        "warm_up_rounds": len(warmed.step_ms),
        "rss_anon_tree_mb": settled["rss_anon"],
        "pss_anon_tree_mb": phases.at("after warm-up")["pss_anon_mb"],
        "rss_file_tree_mb": settled["rss_file"],
        "rss_shmem_tree_mb": settled["rss_shmem"],
        "swap_tree_mb": settled["swap"],
        **peak,
        "rss_anon_at_context_mb": before_trim,
        "rss_anon_after_trim_mb": phases.status["after trim"]["rss_anon"],
        "trim_mb": before_trim - phases.status["after trim"]["rss_anon"],
        "context_tokens": work.context_tokens,
        "samples": samples | warmed.samples,
        "phases": phases.marks,
        **verified,
        "workload": {name: getattr(work, name) for name in Work.names()},
        "notes": [*notes, *why_no_peak],
    }


def _peak(*watched: process_memory.Peak) -> tuple[dict[str, float], list[str]]:
    """The peak as a metric, or why the harness's own (``sampled.``) stands alone."""
    gap_s = max(one.longest_gap_s for one in watched)
    if gap_s > LONGEST_UNSEEN_S:
        return {}, [
            f"no peak_rss_anon_tree_mb: the engine held the interpreter's lock for up to {gap_s:.1f} s; "
            "sampled.peak_rss_anon_tree_mb was seen from outside"
        ]
    return {"peak_rss_anon_tree_mb": max(one.rss_anon_mb for one in watched)}, []
