"""Several workloads on one engine in this process: batch sizes and depths of one thread count.

    python -m benchmarks.edge_harness.measure.sweep --model DIR --threads 2 --tests '[{"prompt_tokens": 512}]'

Every workload has its own warm-up. The engine is sized for the largest, so that all run on the same one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters.workload import EMPTY_CACHE_NOTE, Work
from benchmarks.edge_harness.measure import arm
from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.memory_marks import MemoryMarks
from benchmarks.edge_harness.measure.thread_binding import binding_record
from vllm_omni.errors import OmniError


def run(options: argparse.Namespace, output: Output) -> None:
    """Measure every test and emit one record."""
    works = [arm.parse_work(json.dumps(test)) for test in json.loads(options.tests)]
    if not works:
        raise OmniError("--tests: expected at least one workload, found none")
    extra: dict[str, Any] = json.loads(options.engine_args)
    import_s = arm.import_engine(MemoryMarks())
    from benchmarks.edge_harness.measure import engine as engine_module

    length, batch = max(map(arm.context_len, works)), max(work.batch for work in works)
    arguments = engine_module.engine_arguments(options.model, length, batch, extra)
    engine = engine_module.InProcessEngine(arguments)
    tests = []
    for number, work in enumerate(works, 1):
        print(f"test {number} of {len(works)}: {work}", file=sys.stderr, flush=True)
        tests.append(_test(engine, work, options, extra))
    record: dict[str, Any] = {"import_s": import_s} | engine.times_s
    seen, notes = arm.what_ran_record(engine, works[0])
    tests[0]["notes"] += notes
    record |= seen | arm.verification(engine) | binding_record(options)
    record |= {
        "process": engine.process_facts(),
        "threads": arm.thread_count(),
        "engine_arguments": arguments | {"model": options.model.resolve().name},
        "stock": options.stock,
        "tests": tests,
    }
    output.emit(record)
    engine.close()


def _test(engine: Any, work: Work, options: argparse.Namespace, extra: dict[str, Any]) -> dict[str, Any]:
    warmed = arm.warm_up(engine, work)
    notes = [EMPTY_CACHE_NOTE] if work.empty_cache else []
    metrics, samples, why = arm.measured_under_ceiling(engine, work, options, extra)
    return {
        "workload": {name: getattr(work, name) for name in Work.names()},
        "metrics": metrics,
        "samples": samples,
        "warm_up": warmed.samples,
        "notes": notes + warmed.notes + why,
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.edge_harness.measure.sweep")
    made.add_argument("--model", type=Path, required=True, metavar="DIR")
    made.add_argument("--tests", required=True, metavar="JSON", help="a list of spec.Workload")
    arm.add_engine_options(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    return arm.run_program(parser().parse_args(arguments), run)


if __name__ == "__main__":
    sys.exit(main())
