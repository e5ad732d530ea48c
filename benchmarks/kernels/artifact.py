"""Result files: JSON, written once and whole."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from vllm_omni.errors import OmniError

SCHEMA_VERSION = 1


def refuse_existing(path: Path) -> None:
    """Raise :class:`OmniError` when a result is there already: a figure is never overwritten."""
    if path.exists():
        raise OmniError(f"{path}: expected a new file, found one: results are never overwritten")


def write(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to the new file ``path``, its folder made if missing. When that fails, no part of a
    file is left behind."""
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        json.dump({"schema_version": SCHEMA_VERSION} | content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
        try:
            # Unlike a rename, a link does not replace a file that has appeared meanwhile.
            os.link(file.name, path)
        except FileExistsError:
            refuse_existing(path)
