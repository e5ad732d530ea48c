"""llama-bench at several thread counts, each on cores of its own, its JSON kept inside an artifact."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters.build import read_mark
from benchmarks.edge_harness.adapters.llama_cpp import GgmlAdapter
from benchmarks.edge_harness.adapters.recipes import Recipe
from benchmarks.edge_harness.artifact.schema import ArmProvenance, Artifact, ThreadSet
from benchmarks.edge_harness.grid import preflight
from benchmarks.edge_harness.grid.cores import core_list
from benchmarks.edge_harness.grid.monitors import Monitors
from benchmarks.edge_harness.provenance.collect import collect_load, model_identity, scrub
from benchmarks.edge_harness.provenance.probe import probe_artifact
from vllm_omni.cli.machine import Machine
from vllm_omni.errors import OmniError


def cores_of(threads: int) -> list[int]:
    """A core for each thread: one logical CPU of every physical core before any second one."""
    allowed = sorted(os.sched_getaffinity(0))
    first = list(Machine.read().cores)
    return [*first, *(core for core in allowed if core not in first)][:threads]


def bench_command(
    adapter: GgmlAdapter,
    bench: Path,
    model: Path,
    threads: int,
    prompt_tokens: int,
    decode_tokens: int,
    repeats: int,
) -> list[str]:
    """llama-bench's own command line: prefill of an empty cache, and decode after ``prompt_tokens``. The
    fork has no depth; its combined test is the prompt and the decode after it."""
    common = [str(bench), "-m", str(model), "-t", str(threads), "-r", str(repeats), "-o", "json"]
    if adapter.name == "llama.cpp":
        return [*common, "-p", "0", "-n", str(decode_tokens), "-d", str(prompt_tokens)]
    repack = ["-rtr", "1"] if adapter.repacks_by_default(model) else []
    return [*common, "-p", "0", "-n", "0", "-gp", f"{prompt_tokens},{decode_tokens}", *repack]


def prompt_command(
    adapter: GgmlAdapter, bench: Path, model: Path, threads: int, prompt_tokens: int, repeats: int
) -> list[str]:
    repack = ["-rtr", "1"] if adapter.name != "llama.cpp" and adapter.repacks_by_default(model) else []
    workload = ["-p", str(prompt_tokens), "-n", "0", "-r", str(repeats), "-o", "json"]
    return [str(bench), "-m", str(model), "-t", str(threads), *workload, *repack]


def busy_note(monitors: Monitors, cores: Sequence[int], allow_busy: bool) -> list[str]:
    """Nothing on free cores. Raises :class:`OmniError` on busy ones that were not allowed."""
    occupied = preflight.look(monitors, cores, [os.getpid()])
    if not occupied.is_too_busy:
        return []
    if allow_busy:
        return [f"begun on busy cores: {occupied.sentence}"]
    raise OmniError(
        f"{occupied.sentence}: expected free cores: wait, keep others off {core_list(cores)}, or record it "
        "with --allow-busy"
    )


@contextlib.contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """What is started inside inherits ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def rows_of(peer: Recipe, argv: Sequence[str], cores: Sequence[int]) -> list[dict[str, Any]]:
    """Run llama-bench on ``cores``; its rows, without the folder of the model."""
    with pinned(cores):
        done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise OmniError(f"{peer.name}: llama-bench failed (exit {done.returncode}): {reason}")
    try:
        rows: list[dict[str, Any]] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise OmniError(f"{peer.name}: llama-bench: expected JSON: {error}") from error
    for row in rows:
        row["model_filename"] = Path(row["model_filename"]).name
    return rows


def bench_artifact(
    adapter: GgmlAdapter,
    model: Path,
    commands: Sequence[Sequence[str]],
    cores: Sequence[int],
    monitors: Monitors,
    allow_busy: bool,
) -> Artifact:
    """One thread count."""
    from benchmarks.edge_harness.adapters.llama_cpp import peer_of

    notes = busy_note(monitors, cores, allow_busy)
    before = collect_load(cores)
    rows = [row for argv in commands for row in rows_of(adapter.recipe, argv, cores)]
    arm = ArmProvenance(
        tag=f"{adapter.name}-t{len(cores)}",
        adapter=None,
        command=[scrub(part) for argv in commands for part in argv],
        env={},
        model=model_identity(model),
        kernels=None,
        peer=peer_of(adapter.recipe),
        allocator=None,
        openmp_runtimes=[],
        threads=len(cores),
        unavailable=None,
        allowed_cores=list(cores),
    )
    return probe_artifact(
        f"llama-bench: {adapter.name}, {model.name}, {len(cores)} threads",
        {"peer": read_mark(adapter.recipe), "llama_bench": rows},
        before=before,
        notes=notes,
        arms=[arm],
        thread_set=ThreadSet(cores=list(cores), memory_nodes=None, memory_bound=False, note=None),
    )
