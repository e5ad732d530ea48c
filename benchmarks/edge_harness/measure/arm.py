"""The standard workload on vLLM, in this process: every metric of an arm from one fresh process.

    python -m benchmarks.edge_harness.measure.arm --model DIR
    python -m benchmarks.edge_harness.measure.arm --model DIR --stock --workload '{"prompt_tokens": 128}'

The last line of the standard output is the record; everything else goes to standard error. The order of a
run: import, build the engine, one token (``ready_s``), warm-up until the times hold still, memory at rest,
the measured repetitions with no sampler running, memory with the context filled and after ``malloc_trim``,
then kernels, verification and the model's identity.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.edge_harness.adapters.workload import (
    EMPTY_CACHE_NOTE,
    FIRST_TOKEN_PROMPT,
    WARM_UP_STEPS,
    WarmUp,
    Work,
)
from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.memory_marks import MB, MemoryMarks
from benchmarks.edge_harness.measure.process_age import process_age_s
from benchmarks.edge_harness.measure.thread_binding import add_binding_options, bind, binding_record
from benchmarks.edge_harness.measure.timing import (
    MOST_WARM_UPS,
    Repetition,
    speed_metrics,
    speed_samples,
)
from vllm_omni.errors import OmniError

if TYPE_CHECKING:
    from benchmarks.edge_harness.measure.engine import InProcessEngine


def context_len(work: Work) -> int:
    """Tokens that a sequence may hold."""
    return work.context_tokens


def parse_work(text: str) -> Work:
    """The workload of a command line. Raises :class:`OmniError`."""
    try:
        return Work.from_json(text)
    except (TypeError, ValueError) as error:
        raise OmniError(str(error)) from error


def import_engine(marks: MemoryMarks) -> float:
    """Import vLLM and what an engine needs of it; the seconds that took."""
    start = time.monotonic()
    import vllm  # noqa: F401
    from vllm.v1.engine import llm_engine  # noqa: F401

    seconds = time.monotonic() - start
    marks.mark("after import")
    return seconds


def warm_up(engine: InProcessEngine, work: Work) -> WarmUp:
    """Repeat the prompt that is measured, at its depth, and some steps as they are measured."""
    done = WarmUp.of(work)
    steps = min(WARM_UP_STEPS, work.decode_tokens - 1)
    while len(done.step_ms) < MOST_WARM_UPS and not done.stable:
        seed = 1000 + len(done.step_ms)
        after_prompt = 1 if work.empty_cache else steps
        prompt = engine.repetition(
            work.prompt_tokens, after_prompt, batch=work.batch, depth=work.depth, seed=seed
        )
        decode = engine.repetition(1, steps, batch=work.batch, seed=seed) if work.empty_cache else prompt
        done.ttft_ms.append(prompt.ttft_ms)
        done.step_ms.append(statistics.fmean(decode.intervals_ms))
    return done


def measured(engine: InProcessEngine, work: Work) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Metrics and raw samples of the workload's repetitions."""
    steps = work.decode_tokens - 1
    filled: list[Repetition] = []
    empty: list[Repetition] = []
    for number in range(1, work.repeats + 1):
        after_prompt = 1 if work.empty_cache else steps
        filled.append(
            engine.repetition(
                work.prompt_tokens, after_prompt, batch=work.batch, depth=work.depth, seed=number
            )
        )
        if work.empty_cache:
            empty.append(engine.repetition(1, steps, batch=work.batch, seed=-number % 1000))
    metrics, samples = speed_metrics(filled), speed_samples(filled)
    if empty:
        of_prompt = ("pp_tps", "ttft_ms")
        metrics = speed_metrics(empty) | {name: metrics[name] for name in of_prompt}
        samples = speed_samples(empty) | {name: samples[name] for name in of_prompt}
    return metrics, samples


def ceiling_share(
    work: Work,
    model: Path,
    step_ms: float,
    ceiling_gbps: float,
    engine_args: dict[str, Any] | None = None,
) -> tuple[dict[str, float], list[str]]:
    """Bytes that a step reads over its time, over the ceiling; or why there is no such figure."""
    from benchmarks.edge_harness.measure.step_bytes import step_bytes
    from benchmarks.edge_harness.provenance.machine import last_level_cache_bytes

    found = step_bytes(model, engine_args)
    before = 1 if work.empty_cache else work.depth + work.prompt_tokens
    read = found.read_bytes(before + work.decode_tokens / 2, work.batch)
    if read is None or found.weight_bytes is None:
        return {}, [f"no share of the read ceiling: {found.why}"]
    figures = {"weight_bytes_per_token": float(found.weight_bytes)}
    cache = last_level_cache_bytes()
    if cache is not None and read < cache:
        return figures, [
            f"no share of the read ceiling: the {read / MB:.0f} MB of a decode step fit the last-level cache "
            f"of {cache / MB:.0f} MB, and the ceiling is memory's"
        ]
    return figures | {"ceiling_share": read / (step_ms * 1e6) / ceiling_gbps}, []


def run(options: argparse.Namespace, output: Output) -> None:
    """Measure and emit."""
    work = parse_work(options.workload)
    extra: dict[str, Any] = json.loads(options.engine_args)
    marks = MemoryMarks()
    with marks:
        marks.mark("before import")
        import_s = import_engine(marks)
        from benchmarks.edge_harness.measure import engine as engine_module

        arguments = engine_module.engine_arguments(options.model, context_len(work), work.batch, extra)
        engine = engine_module.InProcessEngine(arguments, marks.mark)
        engine.run(engine.random_ids(FIRST_TOKEN_PROMPT, 0), 1)
        ready_s = process_age_s()
        warmed = warm_up(engine, work)
        marks.mark("after warm-up")
    notes = [EMPTY_CACHE_NOTE] if work.empty_cache else []
    notes += warmed.notes
    metrics, samples, of_ceiling = measured_under_ceiling(engine, work, options, extra)
    record: dict[str, Any] = metrics | {"ready_s": ready_s, "import_s": import_s} | engine.times_s
    # Memory before whatever is run to look at the engine: a profiler and log-probabilities allocate.
    memory, of_memory = memory_record(engine, work, marks)
    record |= memory
    seen, of_seen = what_ran_record(engine, work)
    record |= seen
    record |= verification(engine)
    notes += of_ceiling + of_memory + of_seen
    record |= {
        "process": engine.process_facts(),
        "threads": thread_count(),
        "warm_up_rounds": len(warmed.step_ms),
        "workload": {name: getattr(work, name) for name in Work.names()} | {"context_len": context_len(work)},
        "engine_arguments": arguments | {"model": options.model.resolve().name},
        "stock": options.stock,
        "samples": samples | warmed.samples,
        "notes": notes,
    }
    record |= binding_record(options)
    if options.identity:
        from benchmarks.edge_harness.provenance.model import model_identity

        record["model"] = model_identity(options.model).model_dump()
    output.emit(record)
    engine.close()


def measured_under_ceiling(
    engine: InProcessEngine, work: Work, options: argparse.Namespace, extra: dict[str, Any]
) -> tuple[dict[str, float], dict[str, list[float]], list[str]]:
    """Metrics, samples and notes of the repetitions, with the read ceiling before and after them."""
    if not options.ceiling:
        return *measured(engine, work), []
    ceiling = Ceiling()
    ceiling.sample()
    metrics, samples = measured(engine, work)
    ceiling.sample()
    notes: list[str] = []
    if ceiling.samples:
        metrics["ceiling_gbps"] = statistics.median(ceiling.samples)
        samples["ceiling_gbps"] = ceiling.samples
        share, notes = ceiling_share(work, options.model, metrics["step_ms"], metrics["ceiling_gbps"], extra)
        metrics |= share
    return metrics, samples, notes + ceiling.notes()


class Ceiling:
    """The read ceiling before and after a timed part; its buffer lives no longer than a reading."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._notes: dict[str, None] = {}

    def sample(self) -> None:
        """One reading; where there can be none, a note says why."""
        from benchmarks.edge_harness.measure.read_ceiling import ReadCeiling

        try:
            with ReadCeiling() as ceiling:
                self.samples += ceiling.samples_gbps(3)
                multiple = ceiling.cache_multiple
                of_cache = "" if multiple is None else f", {multiple:.1f} times the last-level cache"
                self._notes[f"read ceiling over {ceiling.nbytes / MB:.0f} MB{of_cache}"] = None
        except OmniError as error:
            self._notes[f"no read ceiling: {error}"] = None

    def notes(self) -> list[str]:
        return list(self._notes)


def what_ran_record(engine: InProcessEngine, work: Work) -> tuple[dict[str, Any], list[str]]:
    from benchmarks.edge_harness.measure.what_ran import profiled, what_ran

    rows: list[Any] = []
    engine.repetition(
        min(work.prompt_tokens, 16),
        1,
        batch=work.batch,
        seed=7,
        each_step=lambda: rows.extend(profiled(engine.step)),
    )
    kernels, ran, notes = what_ran(engine, rows, work.batch)
    return {"kernels": kernels, "ran": ran}, notes


def verification(engine: InProcessEngine) -> dict[str, Any]:
    """Of the fixed text, as a prompt and token by token. Raises :class:`OmniError` when the two differ."""
    from benchmarks.edge_harness.measure.forced_decode import decode_logprobs
    from benchmarks.edge_harness.measure.verification_paths import PathsDisagree, verification_record
    from benchmarks.edge_harness.measure.verification_text import verification_ids

    ids = verification_ids(engine.encode)
    try:
        return verification_record(engine.prefill_logprobs(ids), decode_logprobs(engine, ids), ids)
    except PathsDisagree as error:
        raise OmniError(str(error)) from error


def memory_record(
    engine: InProcessEngine, work: Work, marks: MemoryMarks
) -> tuple[dict[str, Any], list[str]]:
    """Memory with every sequence's context filled to its end, then after ``malloc_trim``; and notes."""
    from vllm_omni import monitor

    length = context_len(work)
    with marks:
        engine.repetition(
            length - 4 * work.batch - 2,
            1,
            batch=work.batch,
            seed=11,
            at_end=lambda: marks.mark("at context"),
        )
    trimmed = monitor.trim()
    marks.mark("after trim")
    after = marks.trees["after trim"].rss_anon_bytes / MB
    before = trimmed.rss_anon_before_bytes / MB
    record = marks.metrics("after warm-up", "at context") | {
        "trim_mb": before - trimmed.rss_anon_after_bytes / MB,
        "rss_anon_after_trim_mb": after,
        "context_tokens": length,
        # The course over time is the harness's to sample: it sees the whole run.
        **{name: value for name, value in marks.record().items() if name != "memory"},
    }
    return record, [trimmed.note] if trimmed.note else []


def thread_count() -> int:
    import torch

    return int(torch.get_num_threads())


def parser() -> argparse.ArgumentParser:
    """The command line. typer would be imported before the first mark of memory, so it is not used."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.edge_harness.measure.arm",
        description="The standard workload on vLLM in this process; one JSON line on standard output.",
    )
    made.add_argument("--model", type=Path, required=True, metavar="DIR", help="a model folder")
    made.add_argument("--workload", default="{}", metavar="JSON", help="spec.Workload; left out: its default")
    made.add_argument("--no-identity", dest="identity", action="store_false", help="no digest of the weights")
    add_engine_options(made)
    return made


def add_engine_options(made: argparse.ArgumentParser) -> None:
    """What every program that builds an engine takes."""
    made.add_argument("--engine-args", default="{}", metavar="JSON", help="arguments for vLLM's EngineArgs")
    add_binding_options(made)
    made.add_argument("--stock", action="store_true", help="stock vLLM: our plugin does nothing")
    made.add_argument("--cache-root", type=Path, metavar="DIR", help="vLLM's compile cache for this run")
    made.add_argument("--no-ceiling", dest="ceiling", action="store_false", help="no read ceiling")


def run_program(
    options: argparse.Namespace, run: Callable[[argparse.Namespace, Output], None], *, in_process: bool = True
) -> int:
    """Run a measuring program; its exit code. One line on standard error for what the user can put right."""
    try:
        bind(options)
        output = Output()
        from vllm_omni.cli import in_process as environment

        environment.prepare(in_process=in_process, stock=options.stock, cache_root=options.cache_root)
        run(options, output)
    except (OmniError, json.JSONDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def main(arguments: list[str] | None = None) -> int:
    return run_program(parser().parse_args(arguments), run)


if __name__ == "__main__":
    sys.exit(main())
