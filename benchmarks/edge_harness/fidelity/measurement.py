"""The whole measurement of one build: references first, then the engine on both paths and greedy."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.edge_harness.fidelity import greedy, prompts, score
from benchmarks.edge_harness.fidelity.engine import engine
from benchmarks.edge_harness.fidelity.folder_weights import decoder_of, weights_in
from benchmarks.edge_harness.fidelity.kl import Divergence, ReferenceLogits
from benchmarks.edge_harness.fidelity.logit_capture import LogitCapture
from benchmarks.edge_harness.fidelity.reference import Decoder
from benchmarks.edge_harness.fidelity.text import token_windows, windows_sha256
from benchmarks.edge_harness.fidelity.tokens import (
    gguf_words,
    load_tokenizer,
    require_same_tokens,
    require_same_vocabulary,
    require_same_words,
    words_of,
)
from benchmarks.edge_harness.measure.engine import engine_arguments
from vllm_omni.errors import OmniError

Progress = Callable[[str, int, int], None]
"""Called with a phase's name, what is done of it and how much there is."""

# A reference in fp32 is kept in memory where it takes no more than this share of what is free.
_SHARE_IN_MEMORY = 0.25
# Tokens behind a window, so that the last forced one fits.
_SPARE_TOKENS = 128


@dataclass(frozen=True)
class Options:
    """What to measure. Without ``reference`` the build's own weights, dequantized, are the reference."""

    model: Path
    reference: Path | None
    windows: int
    window_tokens: int
    paths: tuple[score.Path, ...]
    batch: int
    greedy: bool
    seed: int


@dataclass
class Measured:
    """``kernels``: which of ours ran on each path, with the number of layers."""

    paths: dict[str, dict[str, Any]] = field(default_factory=dict)
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)
    greedy: dict[str, Any] | None = None
    greedy_floor: dict[str, Any] | None = None
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    windows_sha256: str = ""
    notes: list[str] = field(default_factory=list)
    times_s: dict[str, float] = field(default_factory=dict)


def measure(options: Options, progress: Progress = lambda phase, done, total: None) -> Measured:
    """Raises ``OmniError`` for a model and a reference that cannot be compared."""
    measured = Measured()
    tokenizer = load_tokenizer(options.model)
    windows = token_windows(tokenizer, options.windows, options.window_tokens)
    measured.windows_sha256 = windows_sha256(windows)
    _require_same_texts(options, tokenizer, windows)
    with _timed(measured, "reference_s"):
        plain = _decoder(options)
        logits = _reference_logits(plain, windows, progress)
        reference = ReferenceLogits(logits, windows)
    with _timed(measured, "floor_s"):
        bf16 = plain.to(torch.bfloat16)
        floor = Divergence(reference)
        for window, rows in enumerate(bf16.logits_by_window(windows)):
            floor.add(window, 0, rows)
            progress("bf16 floor", window + 1, len(windows))
    greedy_ids: dict[str, list[int]] = {}
    expected: dict[str, list[int]] = {}
    if options.greedy:
        greedy_ids = _prompt_ids(options.model, tokenizer)
        with _timed(measured, "greedy_reference_s"):
            expected = _greedy_reference(plain, bf16, greedy_ids, measured, progress)
    del bf16
    gc.collect()
    answers = _run_engine(options, measured, windows, floor, greedy_ids, progress)
    if options.greedy:
        measured.greedy = greedy.summary(
            [
                greedy.compare(name, greedy_ids[name], expected[name], answers[name], plain)
                for name in expected
            ]
        )
    return measured


def _run_engine(
    options: Options,
    measured: Measured,
    windows: torch.Tensor,
    floor: Divergence,
    greedy_ids: dict[str, list[int]],
    progress: Progress,
) -> dict[str, list[int]]:
    """Start the engine, score its paths, and give its greedy tokens by prompt."""
    from vllm_omni import _rust

    reference = floor.reference
    context = max([options.window_tokens, *map(len, greedy_ids.values())]) + _SPARE_TOKENS
    with ExitStack() as stack:
        with _timed(measured, "start_s"):
            progress("engine", 0, 1)
            llm = stack.enter_context(engine(options.model, **_engine_settings(options, context)))
        _require_head(llm, reference, options)
        capture = LogitCapture(llm, windows)
        for path in options.paths:
            found = Divergence(reference)
            done = partial(progress, path)
            with _timed(measured, f"{path}_s"):
                _rust.reset_kernel_calls()
                traces = score.run_path(capture, path, len(windows), options.batch, found.add, done)
            measured.kernels[path] = {row.kernel: row.layers for row in _rust.kernel_calls()}
            measured.traces[path] = _steps(traces)
            measured.paths[path] = score.score(path, found, floor, seed=options.seed)
        if not greedy_ids:
            return {}
        with _timed(measured, "greedy_s"):
            progress("greedy", 0, len(greedy_ids))
            return greedy.continue_in_engine(llm, greedy_ids, prompts.NEW_TOKENS)


def _decoder(options: Options) -> Decoder:
    source = options.reference or options.model
    if source.suffix == ".gguf":
        return Decoder.from_gguf(source)
    lazy = decoder_of(source)
    if 4 * weights_in(source) > _SHARE_IN_MEMORY * psutil.virtual_memory().available:
        return lazy
    return lazy.to(torch.float32)


def _reference_logits(plain: Decoder, windows: torch.Tensor, progress: Progress) -> torch.Tensor:
    logits = torch.empty((*windows.shape, plain.vocabulary))
    for window, rows in enumerate(plain.logits_by_window(windows)):
        logits[window] = rows
        progress("fp32 reference", window + 1, len(windows))
    return logits


def _require_same_texts(options: Options, tokenizer: Any, windows: torch.Tensor) -> None:
    reference = options.reference
    if reference is None:
        return
    if reference.suffix == ".gguf":
        # Only its words: what splits a text before the merges has a name there, and no definition.
        require_same_words(words_of(tokenizer), gguf_words(reference), reference.name)
        return
    other = load_tokenizer(reference)
    require_same_words(words_of(tokenizer), words_of(other), reference.name)
    others = token_windows(other, options.windows, options.window_tokens)
    require_same_tokens(windows, others, reference.name)


def _require_head(llm: Any, reference: ReferenceLogits, options: Options) -> None:
    name = (options.reference or options.model).name
    found = int(llm.llm_engine.model_config.get_vocab_size())
    require_same_vocabulary(found, reference.logits.shape[-1], name)


def _prompt_ids(model: Path, tokenizer: Any) -> dict[str, list[int]]:
    try:
        return prompts.prompt_ids(tokenizer)
    except ValueError as error:
        raise OmniError(f"{model}: expected a chat template, or --no-greedy: {error}") from error


def _greedy_reference(
    plain: Decoder,
    bf16: Decoder,
    ids: dict[str, list[int]],
    measured: Measured,
    progress: Progress,
) -> dict[str, list[int]]:
    """The bf16 continuations; beside them, how often those part from the fp32 ones of the same weights."""
    in_memory = isinstance(plain.tensors, dict)
    expected, floor = {}, []
    for number, (name, prompt) in enumerate(ids.items(), 1):
        expected[name] = bf16.greedy(prompt, prompts.NEW_TOKENS)
        if in_memory:
            exact = plain.greedy(prompt, prompts.NEW_TOKENS)
            floor.append(greedy.compare(name, prompt, exact, expected[name], plain))
        progress("greedy reference", number, len(ids))
    if in_memory:
        measured.greedy_floor = greedy.summary(floor)
    else:
        measured.notes.append("the fp32 weights do not fit the memory: no greedy floor was computed")
    return expected


def _engine_settings(options: Options, context: int) -> dict[str, Any]:
    settings = engine_arguments(
        options.model,
        context,
        options.batch,
        {"dtype": "bfloat16", "max_num_batched_tokens": options.batch * context},
    )
    # LLM takes it as its first argument.
    settings.pop("model", None)
    return settings


def _steps(traces: list[Any]) -> dict[str, Any]:
    steps = [step for trace in traces for step in trace.steps]
    tokens = [count for step in steps for count in step.values()]
    return {
        "steps": len(steps),
        "tokens": sum(tokens),
        "tokens_a_step_of_a_sequence": [min(tokens), max(tokens)],
        "sequences_a_step": [min(map(len, steps)), max(map(len, steps))],
    }


@contextmanager
def _timed(measured: Measured, name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    measured.times_s[name] = time.monotonic() - start
