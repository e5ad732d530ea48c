"""What ``decode`` and ``prefill`` share: thread counts in fresh processes, one table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.edge_harness.cli.compile_cache import CompileCache
from benchmarks.edge_harness.cli.probe_output import ProbeOutput
from benchmarks.edge_harness.cli.probe_runs import Child, SampleSet
from benchmarks.edge_harness.measure.bench_table import Format, Row, name_of_test, table
from benchmarks.edge_harness.measure.fresh_process import program
from vllm_omni.errors import OmniError

Kind = Literal["pp", "tg"]


def counts(text: str, option: str, least: int) -> list[int]:
    """``1,2,8`` as numbers, each once. Raises :class:`OmniError` naming the option."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [least - 1]
    if min(numbers) < least:
        raise OmniError(f"{option} {text}: expected numbers from {least} on, separated by commas")
    return list(dict.fromkeys(numbers))


def thread_counts(text: str | None) -> list[int]:
    """Those of ``--threads``, or all cores of this process as one count."""
    from vllm_omni.cli.machine import Machine

    cores = len(Machine.read().cores)
    if text is None:
        return [cores]
    found = counts(text, "--threads", 1)
    if max(found) > cores:
        raise OmniError(f"--threads {text}: expected at most {cores}, the cores of this process")
    return found


def sweep(
    kind: Kind,
    *,
    model: Path,
    tests: Sequence[dict[str, Any]],
    threads: Sequence[int],
    options: Sequence[str],
    cache_root: Path | None,
    engine: str,
    output: ProbeOutput,
    form: Format,
) -> None:
    """Measure ``tests`` for each thread count, show the table, finish with one record.

    The record's own metrics are those of the first test with the last thread count; ``runs`` holds all."""
    sets: list[SampleSet] = []
    runs: list[dict[str, Any]] = []
    cache = CompileCache(cache_root)
    for count in threads:
        command = program(
            "sweep",
            *("--model", str(model), "--threads", str(count)),
            *("--tests", json.dumps(list(tests)), *options),
        )
        title = f"{model.name}, {threads_text(count)}"
        child = output.measure(command, title, threads=count, cache=cache)
        sets += _sets(kind, child)
        runs.append(dict(child.record))
    rows = [row for run in runs for row in _rows(kind, run, model, engine)]
    output.line(table(rows, "md").rstrip())
    first = runs[-1]["tests"][0]
    record = dict(first["metrics"])
    record |= {name: runs[-1][name] for name in ("kernels", "ran", "verification", "process", "threads")}
    record |= {
        "samples": first["samples"],
        "runs": runs,
        "table": json.loads(table(rows, "json")),
        "notes": list(dict.fromkeys(note for run in runs for test in run["tests"] for note in test["notes"])),
    }
    output.finish(
        record,
        sets,
        metric="tg_tps" if kind == "tg" else "pp_tps",
        model=model,
        stdout=None if form == "json" else table(rows, form),
        in_runs=("runs", "samples"),
    )


def threads_text(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _sets(kind: Kind, child: Child) -> list[SampleSet]:
    """Of one process: its start and its memory, then every workload with its samples."""
    record = child.record
    threads = threads_text(int(record["threads"]))
    start = {name: value for name, value in record.items() if name not in ("tests", "samples")}
    sets = [SampleSet(f"process, {threads}", child, start)]
    for test in record["tests"]:
        tag = f"{_name(kind, test['workload'])}, batch {test['workload']['batch']}, {threads}"
        figures = test["metrics"] | {name: value for name, value in test.items() if name != "metrics"}
        sets.append(SampleSet(tag, child, figures, whole=False))
    return sets


def _name(kind: Kind, work: Mapping[str, Any]) -> str:
    """As llama-bench names a test."""
    if kind == "tg":
        depth = 0 if work["empty_cache"] else work["depth"] + work["prompt_tokens"]
        return name_of_test("tg", work["decode_tokens"] - 1, depth)
    return name_of_test("pp", work["prompt_tokens"], work["depth"])


def _rows(kind: Kind, run: dict[str, Any], model: Path, engine: str) -> list[Row]:
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    rows = []
    for test in run["tests"]:
        work, metrics, samples = test["workload"], test["metrics"], test["samples"]
        decode = kind == "tg"
        rows.append(
            Row(
                model=model.name,
                size_bytes=size,
                engine=engine,
                threads=int(run["threads"]),
                batch=work["batch"],
                test=_name(kind, work),
                samples_ts=tuple(samples["tg_tps" if decode else "pp_tps"]),
                step_ms=metrics["step_ms"] if decode else None,
                itl_ms_p50=metrics["itl_ms_p50"] if decode else None,
                itl_ms_p99=metrics["itl_ms_p99"] if decode else None,
                share=metrics.get("ceiling_share") if decode else None,
            )
        )
    return rows


def product(batches: Sequence[int], depths: Sequence[int]) -> list[tuple[int, int]]:
    """Every batch size at every depth, batch sizes outermost."""
    return list(itertools.product(batches, depths))
