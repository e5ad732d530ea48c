"""The figures of one demo run, all measured in it: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from vllm_omni.cli.demo_engine import Answer
from vllm_omni.errors import OmniError
from vllm_omni.monitor import Peak, TreeMemory

JSON_VERSION = 1

_PLAIN: dict[str, Any] = {
    "title_justify": "left",
    "title_style": "bold",
    "box": box.SIMPLE_HEAD,
    "pad_edge": False,
    "padding": (0, 1, 0, 0),
}


@dataclass(frozen=True)
class ProcessFigures:
    """One process of the tree, settled."""

    name: str
    rss_anon_bytes: int
    pss_bytes: int | None


@dataclass(frozen=True)
class MemoryFigures:
    """Of the process tree: settled after the last answer, and at its peak since before the engine started."""

    settled_rss_anon_bytes: int
    settled_pss_bytes: int | None
    settled_pss_anon_bytes: int | None
    settled_pss_file_bytes: int | None
    settled_pss_shmem_bytes: int | None
    peak_rss_anon_bytes: int
    peak_pss_bytes: int | None
    peak_samples: int
    problems: tuple[str, ...]
    processes: tuple[ProcessFigures, ...]

    @classmethod
    def of(cls, settled: TreeMemory, peak: Peak) -> MemoryFigures:
        return cls(
            settled_rss_anon_bytes=settled.rss_anon_bytes,
            settled_pss_bytes=settled.pss_bytes,
            settled_pss_anon_bytes=settled.pss_anon_bytes,
            settled_pss_file_bytes=settled.pss_file_bytes,
            settled_pss_shmem_bytes=settled.pss_shmem_bytes,
            peak_rss_anon_bytes=peak.rss_anon_bytes,
            peak_pss_bytes=peak.pss_bytes,
            peak_samples=peak.samples,
            problems=peak.problems,
            processes=tuple(ProcessFigures(p.name, p.rss_anon_bytes, p.pss_bytes) for p in settled.processes),
        )


@dataclass(frozen=True)
class Figures:
    """What one run measured. ``ready_s`` is from before vLLM is imported until the engine takes requests."""

    model: str
    imported_now: bool
    import_s: float
    ready_s: float
    engine_arguments: dict[str, Any]
    versions: dict[str, str]
    worker: dict[str, Any]
    answers: tuple[Answer, ...]
    memory: MemoryFigures

    @property
    def packed_bytes(self) -> int:
        return sum(row["packed_bytes"] for row in self.worker["layers"])

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens computed (cached ones left out) over the time to the first tokens."""
        tokens = sum(answer.prompt_tokens - answer.cached_tokens for answer in self.answers)
        return tokens / sum(answer.prefill_s for answer in self.answers)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first of each answer over the time they took; ``None`` when there are none."""
        seconds = sum(answer.decode_s for answer in self.answers)
        tokens = sum(answer.tokens - 1 for answer in self.answers)
        return tokens / seconds if tokens and seconds > 0 else None

    def to_json(self) -> str:
        record = {
            "json_version": JSON_VERSION,
            "model": self.model,
            "imported_now": self.imported_now,
            "import_s": self.import_s,
            "ready_s": self.ready_s,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "packed_bytes": self.packed_bytes,
            "threads": self.worker["threads"],
            "worker": self.worker,
            "engine_arguments": {name: str(value) for name, value in self.engine_arguments.items()},
            "versions": self.versions,
            "memory": asdict(self.memory),
            "answers": [
                {
                    "prompt": answer.prompt,
                    "text": answer.text,
                    "prompt_tokens": answer.prompt_tokens,
                    "cached_tokens": answer.cached_tokens,
                    "tokens": answer.tokens,
                    "prefill_s": answer.prefill_s,
                    "decode_s": answer.decode_s,
                    "finish_reason": answer.finish_reason,
                }
                for answer in self.answers
            ],
        }
        return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def summary(figures: Figures) -> Group:
    """The closing tables."""
    return Group(_kernel_table(figures), _figure_table(figures))


def _kernel_table(figures: Figures) -> Table:
    # Narrow enough for 80 columns with the longest kernel name.
    table = Table(title="Layers and the kernels that serve them", **_PLAIN)
    for column in ("layer", "bits", "kernel", "ISA"):
        table.add_column(column, no_wrap=True)
    for column in ("count", "N×K", "packed"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in figures.worker["layers"]:
        kernels = row["kernels"]
        table.add_row(
            row["kind"],
            "+".join(str(bits) for bits in row["bits"]),
            "\n".join(kernel["name"] for kernel in kernels),
            "\n".join(kernel["isa"] for kernel in kernels),
            str(row["count"]),
            f"{row['n']}×{row['k']}",
            megabytes(row["packed_bytes"]) if row["packed_bytes"] else "shared",
        )
    return table


def _figure_table(figures: Figures) -> Table:
    worker, memory, answers = figures.worker, figures.memory, figures.answers
    table = Table(title="Measured in this run", show_header=False, **_PLAIN)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    computed = sum(answer.prompt_tokens - answer.cached_tokens for answer in answers)
    decoded = sum(answer.tokens - 1 for answer in answers)
    decode = figures.decode_tokens_per_s
    processes = len(memory.processes)
    if not worker["native"]:
        table.add_row("degraded", "portable operators", worker["reason"], style="bold red")
    table.add_row("threads", str(worker["threads"]), f"activations {worker['dtype']}")
    table.add_row("prefill", f"{figures.prefill_tokens_per_s:,.0f} tokens/s", f"{computed} tokens")
    table.add_row(
        "decode", "–" if decode is None else f"{decode:,.1f} tokens/s", f"{decoded} tokens, one at a time"
    )
    table.add_row("ready", f"{figures.ready_s:.1f} s", "from importing vLLM to taking requests")
    if figures.imported_now:
        table.add_row("import", f"{figures.import_s:.1f} s", "GGUF to packed; once")
    table.add_row("packed weights", megabytes(figures.packed_bytes), "mapped from the file")
    table.add_row(
        "RssAnon settled", megabytes(memory.settled_rss_anon_bytes), f"process tree, {processes} processes"
    )
    table.add_row("RssAnon peak", megabytes(memory.peak_rss_anon_bytes), f"{memory.peak_samples} samples")
    table.add_row("Pss settled", megabytes(memory.settled_pss_bytes), "shared pages divided by their sharers")
    for problem in memory.problems:
        table.add_row("not counted", "", problem, style="yellow")
    return table


def megabytes(nbytes: int | None) -> str:
    """``1234567`` → ``"1.2 MB"``; ``None`` → ``"unknown"``."""
    return "unknown" if nbytes is None else f"{nbytes / 1e6:,.1f} MB"


def check_writable(file: Path) -> None:
    """Refuse a JSON target that could not be written after minutes of work."""
    if file.is_dir():
        raise OmniError(f"--json {file}: expected a file, found a folder")
    if not os.access(file.parent, os.W_OK):
        raise OmniError(f"--json {file}: {file.parent} is not a folder that can be written to")


def write_json(file: Path, figures: Figures) -> None:
    """Write the figures whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(figures.to_json())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
