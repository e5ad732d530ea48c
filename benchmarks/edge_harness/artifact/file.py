"""Result files on disk: written once and whole, read strictly."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.edge_harness.artifact.schema import Artifact
from vllm_omni.errors import OmniError


def refuse_existing(path: Path) -> None:
    """Raise :class:`OmniError` when a result is there already: a figure is never overwritten."""
    if path.exists():
        raise OmniError(f"{path}: expected a new file, found one: results are never overwritten")


def write_new(path: Path, artifact: Artifact) -> None:
    """Write ``artifact`` to the new file ``path``, its folder made if missing. When that fails, no part of a
    file is left behind."""
    write_new_json(path, artifact.model_dump(mode="json"))


def write_new_json(path: Path, content: dict[str, Any]) -> None:
    """As :func:`write_new`, for a record of another schema."""
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _synced_copy(path, content) as name:
        try:
            # Unlike a rename, a link does not replace a file that has appeared meanwhile.
            os.link(name, path)
        except FileExistsError:
            refuse_existing(path)


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file in one step; only a retraction does this."""
    with _synced_copy(path, content) as name:
        # The link gives the temporary file a second name, which the rename consumes.
        twin = f"{name}.new"
        os.link(name, twin)
        os.replace(twin, path)


@contextmanager
def _synced_copy(path: Path, content: dict[str, Any]) -> Iterator[str]:
    """The name of a temporary file beside ``path`` that holds ``content``, on disk; gone afterwards."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
        yield file.name


def read_json(path: Path) -> dict[str, Any]:
    """The file's object. Raises :class:`OmniError`."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise OmniError(f"{path}: expected a readable result file: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise OmniError(f"{path}: expected JSON: {error}") from error
    if not isinstance(content, dict):
        raise OmniError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def read(path: Path) -> Artifact:
    """A valid artifact. Raises :class:`OmniError` that names the first key that is missing or wrong."""
    try:
        return Artifact.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise OmniError(f"{path}: {where}: {first['msg']} ({error.error_count()} in all)") from error
