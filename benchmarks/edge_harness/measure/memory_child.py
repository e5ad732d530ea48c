"""The engine under the memory probe: it goes through its phases and waits at each until it was looked at.

    python -m benchmarks.edge_harness.measure.memory_child --model DIR

On standard output ``{"phase": NAME}``, then one line is read from standard input: whoever watches this
process has taken its mark. The last line is the record. Times leave the waiting out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.process_age import process_age_s
from benchmarks.edge_harness.measure.thread_binding import add_binding_options, bind, binding_record, pin
from vllm_omni.errors import OmniError

TRIM_EXTENSION = "benchmarks.edge_harness.measure.worker_trim.WorkerTrim"
FIRST_PROMPT_TOKENS = 8
# The last step of a request computes nothing more; two tokens are left so that a mark sees it alive.
_SPARE = 2


class Watched:
    """Announces phases and waits; ``waited_s`` is how long in all."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.waited_s = 0.0

    def phase(self, name: str) -> None:
        start = time.monotonic()
        self._output.emit({"phase": name})
        if not sys.stdin.readline():
            # Whoever watched is gone: so is the reason to go on.
            raise OmniError("memory probe: the watching process has ended")
        self.waited_s += time.monotonic() - start


def check_context(tokens: int) -> None:
    """Raises :class:`OmniError` for a context that holds no prompt besides what a mark needs."""
    if 0 < tokens <= _SPARE:
        raise OmniError(f"--context-len {tokens}: expected 0, for none, or more than {_SPARE}")


def run(options: argparse.Namespace, output: Output) -> None:
    watched = Watched(output)
    watched.phase("before import")
    start = time.monotonic()
    import vllm  # noqa: F401
    from vllm.v1.engine import llm_engine  # noqa: F401

    import_s = time.monotonic() - start
    watched.phase("after import")
    from benchmarks.edge_harness.adapters.workload import LEAST_CONTEXT
    from benchmarks.edge_harness.measure import engine as engine_module
    from vllm_omni import monitor

    in_process = options.layout == "inproc"
    extra: dict[str, Any] = json.loads(options.engine_args)
    length = max(options.context_len, FIRST_PROMPT_TOKENS + options.generate) + _SPARE
    arguments = engine_module.engine_arguments(options.model, max(length, LEAST_CONTEXT), 1, extra)
    waited_before = watched.waited_s
    if in_process:
        engine: engine_module.Engine = engine_module.InProcessEngine(arguments, watched.phase)
    else:
        engine = engine_module.Engine(arguments | {"worker_extension_cls": TRIM_EXTENSION})
    engine.times_s["init_s"] -= watched.waited_s - waited_before
    engine.run(engine.random_ids(FIRST_PROMPT_TOKENS, 0), 1)
    ready_s = process_age_s() - watched.waited_s
    if options.generate:
        engine.run(engine.random_ids(FIRST_PROMPT_TOKENS, 1), options.generate)
    watched.phase("after warm-up")
    notes = []
    if options.context_len:
        generate = max(_SPARE, min(options.generate, options.context_len - 1))
        ids = engine.random_ids(options.context_len - generate, 2)
        engine.run(ids, generate, before_last=lambda: watched.phase("at context"))
    else:
        notes.append("memory measured on an empty KV cache: --context-len 0")
    trimmed = monitor.trim()
    trims = [_trim(trimmed)]
    notes += [trimmed.note] if trimmed.note else []
    if not in_process:
        trims += [tuple(pair) for pair in engine.rpc("edge_harness_trim")]
        notes.append("malloc_trim ran in the client and in the workers; vLLM's core process offers no way in")
    watched.phase("after trim")
    output.emit(
        {
            "ready_s": ready_s,
            "import_s": import_s,
            **{name: value for name, value in engine.times_s.items() if name != "load_s" or in_process},
            "trim_mb": sum(before - after for before, after in trims) / 1e6,
            "trimmed_processes": len(trims),
            "process": engine.process_facts(),
            "context_tokens": options.context_len,
            "generated_tokens": options.generate,
            "kv_cache_memory_bytes": arguments.get("kv_cache_memory_bytes"),
            "engine_arguments": arguments | {"model": options.model.resolve().name},
            "notes": notes,
            # In vLLM's own processes vLLM binds the threads.
            **(binding_record(options) if in_process else {}),
        }
    )
    engine.close()


def _trim(done: Any) -> tuple[int, int]:
    return done.rss_anon_before_bytes, done.rss_anon_after_bytes


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.edge_harness.measure.memory_child")
    made.add_argument("--model", type=Path, required=True, metavar="DIR")
    made.add_argument("--context-len", type=int, default=1536)
    made.add_argument("--generate", type=int, default=8)
    made.add_argument("--layout", choices=("inproc", "default"), default="inproc")
    made.add_argument("--engine-args", default="{}", metavar="JSON")
    add_binding_options(made)
    made.add_argument("--stock", action="store_true")
    made.add_argument("--cache-root", type=Path, metavar="DIR")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        check_context(options.context_len)
        if options.layout == "inproc":
            bind(options)
        else:
            pin(options.threads)
        output = Output()
        from vllm_omni.cli import in_process

        in_process.prepare(
            in_process=options.layout == "inproc", stock=options.stock, cache_root=options.cache_root
        )
        run(options, output)
    except (OmniError, json.JSONDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
