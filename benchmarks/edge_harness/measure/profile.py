"""Where a decode step's time goes: operators' self times in buckets, checked against the wall.

    python -m benchmarks.edge_harness.measure.profile --model DIR --prompt-len 512

The engine is in this process, so every operator is seen. Kernels of the compiler are made to name themselves
(``cpp.enable_kernel_profile``), which compiles them anew. Plain and profiled steps take turns, in changing
order: the first say what a step takes, the second where; their quotient is what profiling cost.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters.workload import LEAST_CONTEXT
from benchmarks.edge_harness.measure import arm
from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.memory_marks import MemoryMarks
from benchmarks.edge_harness.measure.op_times import (
    MODEL_RANGE,
    SAMPLING_RANGE,
    OpTime,
    bucket_sums,
    op_times,
)
from benchmarks.edge_harness.measure.thread_binding import binding_record
from vllm_omni.errors import OmniError

TOP = 40
# Steps before each part of a window that are not counted: caches, and threads that have gone to sleep.
SETTLING_STEPS = 8
# Of a step's time, in operators; below, the record says so.
LEAST_COVERED = 0.8
# Share by which profiled steps may be faster than plain ones before the record says so.
FASTER = 0.05
NAMED_KERNELS = {"inductor_compile_config": {"cpp.enable_kernel_profile": True}}


def run(options: argparse.Namespace, output: Output) -> None:
    arm.import_engine(MemoryMarks())
    from benchmarks.edge_harness.measure import engine as engine_module

    steps, repeats, batch = options.steps, options.repeats, options.batch
    context_len = options.prompt_len + (2 * steps + 2 * SETTLING_STEPS) * (repeats + 1) + 4 * batch
    extra = {"compilation_config": NAMED_KERNELS} | json.loads(options.engine_args)
    arguments = engine_module.engine_arguments(options.model, max(context_len, LEAST_CONTEXT), batch, extra)
    engine = engine_module.InProcessEngine(arguments)
    mark_ranges(engine.model_runner)
    recordings: list[Recording] = []

    def window() -> None:
        recordings.append(recorded(engine.step, steps, profiled_first=len(recordings) % 2 == 1))

    # The first window is warm-up. Every call is a "step" of the repetition; it counts what it did itself.
    engine.repetition(options.prompt_len, repeats + 1, batch=batch, seed=1, each_step=window, depth=0)
    windows = [
        _Window(one.plain_ms, one.profiled_ms, op_times(one.events(), steps)) for one in recordings[1:]
    ]
    record = profile_record(windows)
    seen, notes = arm.what_ran_record(engine, arm.parse_work(json.dumps({"batch": batch})))
    record["notes"] += notes
    output.emit(
        record
        | seen
        | binding_record(options)
        | {
            "process": engine.process_facts(),
            "threads": arm.thread_count(),
            "prompt_len": options.prompt_len,
            "context_at_end": options.prompt_len + (2 * steps + 2 * SETTLING_STEPS) * (repeats + 1),
            "steps_per_repeat": steps,
            "batch": batch,
            "stock": options.stock,
            "engine_arguments": arguments | {"model": options.model.resolve().name},
        }
    )
    engine.close()


class _Window:
    """One plain and one profiled run of the same number of steps."""

    def __init__(self, plain_ms: float, profiled_ms: float, rows: list[OpTime]) -> None:
        self.plain_ms = plain_ms
        self.profiled_ms = profiled_ms
        self.rows = rows


@dataclass(frozen=True)
class Recording:
    """A window whose profile is not read yet: that takes Python seconds, and would leave its caches and a
    sleeping second core to the next window's plain steps."""

    plain_ms: float
    profiled_ms: float
    events: Callable[[], Iterable[Any]]


def recorded(step: Callable[[], object], steps: int, *, profiled_first: bool) -> Recording:
    """Steps with and without the profiler, in either order, each after some that are not counted. Windows
    take turns: the context grows from the first half to the second."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    profiler = profile(activities=[ProfilerActivity.CPU])

    def plain() -> float:
        _per_step_ms(step, SETTLING_STEPS)
        return _per_step_ms(step, steps)

    def profiled() -> float:
        _per_step_ms(step, SETTLING_STEPS)
        with profiler:
            return _per_step_ms(step, steps)

    if profiled_first:
        profiled_ms, plain_ms = profiled(), plain()
    else:
        plain_ms, profiled_ms = plain(), profiled()
    return Recording(plain_ms, profiled_ms, profiler.events)


def _per_step_ms(step: Callable[[], object], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) * 1e3 / steps


def mark_ranges(runner: Any) -> None:
    """Give the profiler the parts of a step of vLLM's model runner."""
    from torch.profiler import record_function

    def within(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any, **kwargs: Any) -> Any:
            with record_function(name):
                return call(*args, **kwargs)

        return marked

    runner._sample = within(SAMPLING_RANGE, runner._sample)
    runner._model_forward = within(MODEL_RANGE, runner._model_forward)


def profile_record(windows: Sequence[_Window]) -> dict[str, Any]:
    """Medians over the windows, their spread, and the longest operators. Raises :class:`OmniError` when the
    profiler saw nothing, or more than the steps took."""
    if not any(window.rows for window in windows):
        raise OmniError("profile: expected operators in the profiled steps, found none")
    try:
        sums = [bucket_sums(window.rows, window.profiled_ms) for window in windows]
    except ValueError as error:
        raise OmniError(f"profile: {error}") from error
    names = list(sums[0])
    median = {name: statistics.median(row[name] for row in sums) for name in names}
    wall = median["wall_ms"]
    plain = statistics.median(window.plain_ms for window in windows)
    covered = 1 - median["uncovered_ms"] / wall
    cost = wall / plain - 1
    notes = [
        f"{median['uncovered_ms']:.2f} ms of {wall:.2f} ms ran outside every operator: Python and "
        "the scheduler"
    ]
    if covered < LEAST_COVERED:
        notes.append(
            f"operators cover {covered:.0%} of a step, expected {LEAST_COVERED:.0%}: the shares are of the "
            "part that the profiler saw"
        )
    if cost < -FASTER:
        notes.append(
            f"profiled steps were {-cost:.0%} faster than plain ones: the machine's speed changed between "
            "them, and no cost of profiling can be told"
        )
    return {
        "step_ms": plain,
        "profiled_step_ms": wall,
        **{name: value for name, value in median.items() if name != "wall_ms"},
        "covered_share": covered,
        "profiling_cost": cost,
        "samples": {name: [row[name] for row in sums] for name in names}
        | {"step_ms": [window.plain_ms for window in windows]},
        "sd_ms": {
            name: statistics.stdev(row[name] for row in sums) if len(sums) > 1 else None for name in names
        },
        "ops": longest(windows),
        "notes": notes,
    }


def longest(windows: Sequence[_Window], count: int = TOP) -> list[dict[str, Any]]:
    """Operators by the median of their self time; one that a window lacks took no time in it."""
    keys = dict.fromkeys((row.name, row.bucket) for window in windows for row in window.rows)
    found: list[dict[str, Any]] = []
    for name, bucket in keys:
        rows = [row for window in windows for row in window.rows if (row.name, row.bucket) == (name, bucket)]
        times = [row.self_ms for row in rows] + [0.0] * (len(windows) - len(rows))
        found.append(
            {
                "name": name,
                "bucket": bucket,
                "self_ms": statistics.median(times),
                "calls_per_step": statistics.median(row.calls for row in rows),
            }
        )
    return sorted(found, key=lambda row: -row["self_ms"])[:count]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.edge_harness.measure.profile")
    made.add_argument("--model", type=Path, required=True, metavar="DIR")
    made.add_argument("--prompt-len", type=int, default=512)
    made.add_argument("--steps", type=int, default=16, help="decode steps of a window")
    made.add_argument("--repeats", type=int, default=5, help="windows")
    made.add_argument("--batch", type=int, default=1)
    arm.add_engine_options(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    return arm.run_program(parser().parse_args(arguments), run)


if __name__ == "__main__":
    sys.exit(main())
