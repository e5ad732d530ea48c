"""Several workloads on one engine in this process: batch sizes and depths of one thread count.

    python -m benchmarks.edge_harness.measure.sweep --model DIR --threads 2 --tests '[{"prompt_tokens": 512}]'

Every workload has its own warm-up. The engine is sized for the largest, so that all run on the same one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters.workload import EMPTY_CACHE_NOTE, Work
from benchmarks.edge_harness.measure import arm
from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.memory_marks import MemoryMarks
from vllm_omni.errors import OmniError


def run(options: argparse.Namespace, output: Output) -> None:
    """Measure every test and emit one record."""
    works = [arm.parse_work(json.dumps(test)) for test in json.loads(options.tests)]
    if not works:
        raise OmniError("--tests: expected at least one workload, found none")
    extra: dict[str, Any] = json.loads(options.engine_args)
    arm.pin(options.threads)
    import_s = arm.import_engine(MemoryMarks())
    from benchmarks.edge_harness.measure import engine as engine_module

    length, batch = max(map(arm.context_len, works)), max(work.batch for work in works)
    arguments = engine_module.engine_arguments(options.model, length, batch, extra)
    engine = engine_module.InProcessEngine(arguments)
    tests = []
    for number, work in enumerate(works, 1):
        print(f"test {number} of {len(works)}: {work}", file=sys.stderr, flush=True)
        tests.append(_test(engine, work, options))
    record: dict[str, Any] = {"import_s": import_s} | engine.times_s
    record |= arm.what_ran_record(engine, works[0])
    record["verification"] = arm.verification_record(engine)
    record |= {
        "process": engine.process_facts(),
        "threads": arm.thread_count(),
        "engine_arguments": arguments | {"model": options.model.resolve().name},
        "stock": options.stock,
        "tests": tests,
    }
    output.emit(record)
    engine.close()


def _test(engine: Any, work: Work, options: argparse.Namespace) -> dict[str, Any]:
    step_ms, stable = arm.warm_up(engine, work)
    notes = [EMPTY_CACHE_NOTE] if work.empty_cache else []
    if not stable:
        notes.append(arm.unstable_note(step_ms))
    ceiling = arm.Ceiling() if options.ceiling else None
    if ceiling is not None:
        ceiling.sample()
    metrics, samples = arm.measured(engine, work)
    if ceiling is not None:
        ceiling.sample()
        if ceiling.samples:
            metrics["ceiling_gbps"] = statistics.median(ceiling.samples)
            samples["ceiling_gbps"] = ceiling.samples
            share, why = arm.ceiling_share(work, options.model, metrics["step_ms"], metrics["ceiling_gbps"])
            metrics |= share
            notes += why
        notes += ceiling.notes()
    return {
        "workload": {name: getattr(work, name) for name in Work.names()},
        "metrics": metrics,
        "samples": samples,
        "warm_up_step_ms": step_ms,
        "notes": notes,
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
