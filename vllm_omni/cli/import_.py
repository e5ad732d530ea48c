"""``vllm-omni import FILE.gguf DIR``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

# Nothing is shown for work that ends sooner.
_QUIET_S = 2.0
_LINE_INTERVAL_S = 5.0


def run(gguf_file: Path, out_dir: Path) -> None:
    """Import a GGUF into a new model folder and print a summary.

    Raises ``OmniError`` with one line that says what is wrong; the target is then absent, as after an
    interruption.
    """
    # The tensor libraries take seconds to load: a missing file or an existing target is told before.
    from vllm_omni.checkpoints.atomic_folder import refuse_existing
    from vllm_omni.checkpoints.gguf_source import check_file

    check_file(gguf_file)
    refuse_existing(out_dir)
    from vllm_omni.checkpoints.gguf_import import import_gguf

    with Reporter(Console(stderr=True)) as reporter:
        summary = import_gguf(gguf_file, out_dir, reporter.update)
    for line in summary_lines(summary):
        print(line)


def summary_lines(summary: Any) -> list[str]:
    """The closing lines of an import, from its ``ImportSummary``."""
    types = ", ".join(f"{count} {name}" for name, count in sorted(summary.tensor_types.items()))
    return [
        f"imported {summary.tensors} tensors ({types}) into {summary.folder}",
        f"  in {_megabytes(summary.source_bytes)}, out {_megabytes(summary.folder_bytes)} "
        f"({_megabytes(summary.packed_bytes)} packed), {summary.seconds:.1f} s",
        f"next: vllm-omni serve {summary.folder}",
    ]


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


class Reporter:
    """Progress of work longer than two seconds: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console, verb: str = "importing") -> None:
        self._console = console
        self._verb = verb
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = time.monotonic()
        self._next_line = self._started + _QUIET_S

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if self._console.is_terminal:
            if self._bar is None and now - self._started >= _QUIET_S:
                self._start_bar(total_bytes)
            if self._bar is not None:
                self._bar.update(self._task, completed=done_bytes)
        elif now >= self._next_line:
            self._next_line = now + _LINE_INTERVAL_S
            print(
                f"{self._verb}: {_megabytes(done_bytes)} of {_megabytes(total_bytes)}",
                file=sys.stderr,
                flush=True,
            )

    def _start_bar(self, total_bytes: int) -> None:
        self._bar = Progress(
            TextColumn(self._verb),
            BarColumn(),
            TaskProgressColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(self._verb, total=total_bytes)
        self._bar.start()
