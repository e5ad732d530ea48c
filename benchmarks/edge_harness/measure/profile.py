"""Where a decode step's time goes: operators' self times in buckets, checked against the wall.

    python -m benchmarks.edge_harness.measure.profile --model DIR --prompt-len 512

The engine is in this process, so every operator is seen. Kernels of the compiler are made to name themselves
(``cpp.enable_kernel_profile``), which compiles them anew. Plain and profiled windows of steps alternate: the
first say what a step takes, the second where; their quotient is what profiling cost.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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

TOP = 40
# Steps before each window that are not counted: reading the last window's profile has emptied the caches.
SETTLING_STEPS = 4
NAMED_KERNELS = {"inductor_compile_config": {"cpp.enable_kernel_profile": True}}


def run(options: argparse.Namespace, output: Output) -> None:
    arm.pin(options.threads)
    arm.import_engine(MemoryMarks())
    from benchmarks.edge_harness.measure import engine as engine_module

    steps, repeats, batch = options.steps, options.repeats, options.batch
    context_len = options.prompt_len + (2 * steps + 2 * SETTLING_STEPS) * (repeats + 1) + 4 * batch
    extra = {"compilation_config": NAMED_KERNELS} | json.loads(options.engine_args)
    arguments = engine_module.engine_arguments(
        options.model, max(context_len, arm.LEAST_CONTEXT), batch, extra
    )
    engine = engine_module.InProcessEngine(arguments)
    mark_ranges(engine.model_runner)
    windows: list[_Window] = []

    def window() -> None:
        windows.append(_window(engine.step, steps))

    # The first window is warm-up. Every call is a "step" of the repetition; it counts what it did itself.
    engine.repetition(options.prompt_len, repeats + 1, batch=batch, seed=1, each_step=window, depth=0)
    record = profile_record(windows[1:])
    kernels = arm.what_ran_record(engine, arm.parse_work(json.dumps({"batch": batch})))
    output.emit(
        record
        | kernels
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


def _window(step: Callable[[], object], steps: int) -> _Window:
    from torch.profiler import ProfilerActivity, profile

    # The events of the last window are collected now rather than within a step.
    gc.collect()
    _per_step_ms(step, SETTLING_STEPS)
    plain_ms = _per_step_ms(step, steps)
    _per_step_ms(step, SETTLING_STEPS)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        profiled_ms = _per_step_ms(step, steps)
    return _Window(plain_ms, profiled_ms, op_times(profiler.events(), steps))


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
    """Medians over the windows, their spread, and the longest operators."""
    sums = [bucket_sums(window.rows, window.profiled_ms) for window in windows]
    names = list(sums[0])
    median = {name: statistics.median(row[name] for row in sums) for name in names}
    wall = median["wall_ms"]
    plain = statistics.median(window.plain_ms for window in windows)
    covered = 1 - median["uncovered_ms"] / wall
    return {
        "step_ms": plain,
        "profiled_step_ms": wall,
        **{name: value for name, value in median.items() if name != "wall_ms"},
        "covered_share": covered,
        "profiling_cost": wall / plain - 1,
        "samples": {name: [row[name] for row in sums] for name in names}
        | {"step_ms": [window.plain_ms for window in windows]},
        "sd_ms": {
            name: statistics.stdev(row[name] for row in sums) if len(sums) > 1 else None for name in names
        },
        "ops": longest(windows),
        "notes": [
            f"{median['uncovered_ms']:.2f} ms of {wall:.2f} ms ran outside every operator: Python and the "
            "scheduler"
        ],
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
