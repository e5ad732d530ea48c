"""What the probes' commands share: people read standard error, programs read one JSON line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.edge_harness.artifact.file import refuse_existing, write_new
from benchmarks.edge_harness.provenance.load import collect_load
from benchmarks.edge_harness.provenance.model import model_identity
from benchmarks.edge_harness.provenance.probe import probe_artifact


class ProbeOutput:
    """Made before the measurement: a result that could not be written is refused first, and the load of the
    machine is taken."""

    def __init__(self, title: str, out: Path | None) -> None:
        if out is not None:
            refuse_existing(out)
        self.title = title
        self.out = out
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self._before = collect_load()

    def line(self, text: str = "") -> None:
        self.console.print(text)

    def finish(self, record: dict[str, Any], *, model: Path | None = None, stdout: str | None = None) -> None:
        """Show the notes, write the artifact, and print ``record`` as the last line (or ``stdout`` in its
        place, for a table that goes into a file)."""
        notes: Sequence[str] = record.get("notes", [])
        for note in notes:
            self.console.print(f"note: {note}", style="yellow")
        if self.out is not None:
            artifact = probe_artifact(
                self.title,
                record,
                before=self._before,
                notes=notes,
                model=model_identity(model) if model is not None else None,
                kernels=record.get("kernels"),
            )
            if "process" in record:
                # The engine's, not this command's.
                artifact.arms = [artifact.arms[0].model_copy(update=record["process"])]
            write_new(self.out, artifact)
            self.line(f"written to {self.out}")
        sys.stdout.write(json.dumps(record, allow_nan=False) + "\n" if stdout is None else stdout)
        sys.stdout.flush()
