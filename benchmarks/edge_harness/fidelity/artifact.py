"""The result file of a fidelity measurement: a run per path, everything else under ``result``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from benchmarks.edge_harness.artifact.schema import Artifact, Load, Run
from benchmarks.edge_harness.fidelity import bootstrap, kl
from benchmarks.edge_harness.fidelity.measurement import Measured, Options
from benchmarks.edge_harness.provenance.collect import model_identity
from benchmarks.edge_harness.provenance.probe import probe_artifact


def fidelity_artifact(options: Options, measured: Measured, *, before: Load, started_utc: str) -> Artifact:
    """Collects provenance from this process, which ran the engine."""
    identity = model_identity(options.model)
    kernels: dict[str, int] = {}
    for of_path in measured.kernels.values():
        for name, layers in of_path.items():
            kernels[name] = max(layers, kernels.get(name, 0))
    reference = "own weights" if options.reference is None else options.reference.name
    return probe_artifact(
        f"fidelity: {identity.id} against {reference}",
        _result(options, measured),
        before=before,
        kind="fidelity",
        notes=_notes(options, measured),
        model=identity,
        kernels=kernels or None,
        metric="kl_mean_nats",
        runs=[
            _run(path, position, measured, before, started_utc)
            for position, path in enumerate(options.paths, 1)
        ],
    )


def _result(options: Options, measured: Measured) -> dict[str, Any]:
    reference = options.reference
    return {
        "reference": {
            "what": "the model's own weights, dequantized" if reference is None else "given",
            "model": None if reference is None else model_identity(reference).model_dump(),
            "forward": "plain PyTorch, fp32",
            "floor": "the same forward in bf16",
        },
        "text": {
            "source": "pydoc_data.topics",
            "windows": options.windows,
            "window_tokens": options.window_tokens,
            "token_ids_sha256": measured.windows_sha256,
        },
        "batch": options.batch,
        "bootstrap": {
            "seed": options.seed,
            "resamples": bootstrap.RESAMPLES,
            "confidence": bootstrap.CONFIDENCE,
            "block_tokens": kl.BLOCK_TOKENS,
            "interval": "BCa",
        },
        **asdict(measured),
    }


def _notes(options: Options, measured: Measured) -> list[str]:
    notes = list(measured.notes)
    if options.reference is not None and options.reference.is_dir():
        notes.append("the divergence holds the cost of quantization too, not that of the kernels alone")
    return notes


def _run(path: str, position: int, measured: Measured, before: Load, started_utc: str) -> Run:
    figures = measured.paths[path]
    metrics = {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return Run(
        tag=path,
        pass_no=1,
        position=position,
        cold_cache=False,
        started_utc=started_utc,
        wall_s=measured.times_s[f"{path}_s"],
        exit_code=0,
        status="ok",
        reason=None,
        metrics=metrics,
        reported=figures,
        verification=None,
        disturbance=None,
        load_before=before.load_average,
        load_after=[round(value, 2) for value in os.getloadavg()],
        memory=[],
        phases=[],
        stderr_tail=None,
    )
