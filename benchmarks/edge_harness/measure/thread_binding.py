"""OpenMP threads of a measuring program, bound to cores as vLLM binds those of its worker processes.

vLLM gives its workers the binding when it starts them. An engine in this process has no such moment, and an
OpenMP runtime reads its variables when it is loaded: the program begins anew, once, with what a worker would
have been given. The main thread is then on the first core, and so is whatever thread Python starts.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.measure.process_age import process_age_s
from vllm_omni import settings
from vllm_omni.cli import in_process
from vllm_omni.errors import OmniError

VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_TPAUSE",
    "LD_PRELOAD",
    in_process.BIND,
)


def add_binding_options(made: argparse.ArgumentParser) -> None:
    """What :func:`bind` needs; the second pair is for the program that it starts anew."""
    made.add_argument("--threads", type=int, help="cores to compute on [default: all that are allowed]")
    made.add_argument("--bound-cores", help=argparse.SUPPRESS)
    made.add_argument("--restarted-after", type=float, help=argparse.SUPPRESS)


def pin(threads: int | None) -> list[int]:
    """Keep this process to ``threads`` of the cores that it may use, one logical CPU of each."""
    from vllm_omni.cli.machine import Machine

    cores = Machine.read().cores
    if threads is None:
        return list(cores)
    if not 1 <= threads <= len(cores):
        raise OmniError(f"--threads {threads}: expected 1 to {len(cores)}, the cores of this process")
    os.sched_setaffinity(0, cores[:threads])
    return list(cores[:threads])


def bind(options: argparse.Namespace) -> None:
    """Pin this process and begin it anew with its OpenMP threads bound; ``options.cores`` are theirs. Must
    run before torch is imported and before the standard output is diverted."""
    if options.bound_cores is not None:
        options.cores = [int(core) for core in options.bound_cores.split(",")]
        return
    options.cores = pin(options.threads)
    again = (
        "--bound-cores",
        ",".join(map(str, options.cores)),
        "--restarted-after",
        f"{process_age_s():.3f}",
    )
    in_process.restart(again, in_process.worker_variables(options.cores))


def binding_record(options: argparse.Namespace) -> dict[str, Any]:
    """The variables in force, libraries without their folders; when the program began anew, which
    ``ready_s`` includes."""
    variables = settings.given(*VARIABLES)
    if "LD_PRELOAD" in variables:
        variables["LD_PRELOAD"] = ":".join(Path(one).name for one in variables["LD_PRELOAD"].split(":"))
    return {
        "cores": options.cores,
        "omp": {"variables": variables, "restarted_after_s": options.restarted_after},
    }
