"""One start of the engine in this process, part by part.

    python -m benchmarks.edge_harness.measure.start --model DIR

``first_token_s`` is the first request; ``interpreter_s`` is what passed before this program's first
line, beginning anew with its threads bound included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.measure.process_age import process_age_s

# Before the other imports of this file: they are part of the engine's import.
_BORN_S = process_age_s()

from benchmarks.edge_harness.measure import arm  # noqa: E402
from benchmarks.edge_harness.measure.emit import Output  # noqa: E402
from benchmarks.edge_harness.measure.memory_marks import MemoryMarks  # noqa: E402
from benchmarks.edge_harness.measure.thread_binding import binding_record  # noqa: E402


def run(options: argparse.Namespace, output: Output) -> None:
    marks = MemoryMarks()
    import_s = arm.import_engine(marks)
    from benchmarks.edge_harness.measure import engine as engine_module

    extra: dict[str, Any] = json.loads(options.engine_args)
    arguments = engine_module.engine_arguments(options.model, options.context_len, 1, extra)
    engine = engine_module.InProcessEngine(arguments)
    start = time.monotonic()
    engine.run(engine.random_ids(arm.FIRST_TOKEN_PROMPT, 0), 1)
    first_token_s = time.monotonic() - start
    ready_s = process_age_s()
    marks.mark("ready")
    parts = {"interpreter_s": _BORN_S, "import_s": import_s, "first_token_s": first_token_s}
    output.emit(
        {
            "ready_s": ready_s,
            **parts,
            **engine.times_s,
            "process": engine.process_facts(),
            "threads": arm.thread_count(),
            "phases": marks.phases,
            "stock": options.stock,
            **binding_record(options),
            "engine_arguments": arguments | {"model": options.model.resolve().name},
        }
    )
    engine.close()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.edge_harness.measure.start")
    made.add_argument("--model", type=Path, required=True, metavar="DIR")
    made.add_argument("--context-len", type=int, default=2048)
    arm.add_engine_options(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    return arm.run_program(parser().parse_args(arguments), run)


if __name__ == "__main__":
    sys.exit(main())
