"""What a command shows: phases with a spinner, and the process's own output kept out of the way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

BytesDone = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class Terminal:
    """The standard output of this process as it was at the start; it stays usable while output is diverted.

    On a terminal: spinners and colours. Elsewhere: plain lines.
    """

    def __init__(self) -> None:
        descriptor = os.dup(sys.stdout.fileno())
        self._stream: IO[str] = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
        self._console = Console(file=self._stream, highlight=False, markup=False)

    @property
    def is_interactive(self) -> bool:
        return self._console.is_terminal

    def show(self, what: RenderableType = "", style: str | None = None) -> None:
        """A line, or anything that rich renders."""
        self._console.print(what, style=style, soft_wrap=isinstance(what, str))
        self._stream.flush()

    def piece(self, text: str) -> None:
        """Part of a line, shown at once."""
        self._console.print(text, end="", soft_wrap=True)
        self._stream.flush()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A spinner and the time so far while the block runs; then a line with the time it took."""
        with self._progress(name):
            yield

    @contextmanager
    def bytes_phase(self, name: str) -> Iterator[BytesDone]:
        """As :meth:`phase`, with a bar that the yielded function moves."""
        with self._progress(name, BarColumn(), DownloadColumn()) as done:
            yield done

    @contextmanager
    def _progress(self, name: str, *columns: ProgressColumn) -> Iterator[BytesDone]:
        start = time.monotonic()
        if self.is_interactive:
            text = TextColumn("{task.description}", markup=False)
            shown = (SpinnerColumn(), text, *columns, TimeElapsedColumn())
            with Progress(*shown, console=self._console, transient=True) as progress:
                task = progress.add_task(name, total=None)
                yield lambda done, total: progress.update(task, completed=done, total=total)
        else:
            self.show(f"{name} ...")
            yield lambda done, total: None
        self.show(f"{name}: {time.monotonic() - start:.1f} s", style="green")


@contextmanager
def diverted_output(log: Path) -> Iterator[None]:
    """Send standard output and error of this process and of those it starts to the new file ``log``."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (target, *saved):
            os.close(descriptor)
