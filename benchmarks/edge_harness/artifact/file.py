"""Result files on disk: written once and whole, read strictly."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.edge_harness.artifact.schema import Artifact
from benchmarks.edge_harness.provenance.scrub import scrub_values
from vllm_omni.errors import OmniError


def refuse_existing(path: Path) -> None:
    """Raise :class:`OmniError` when the name is taken, by a link to nowhere too: a figure is never
    overwritten."""
    if os.path.lexists(path):
        raise _taken(path)


def write_new(path: Path, artifact: Artifact) -> None:
    """Write ``artifact`` to the new file ``path``, its folder made if missing; nothing in it names a user's
    folders. When that fails, no part of a file is left behind."""
    write_new_json(path, scrub_values(artifact.model_dump(mode="json")))


def write_new_json(path: Path, content: dict[str, Any]) -> None:
    """As :func:`write_new`, for a record of another schema, as it is."""
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _synced_copy(path, content) as copy:
        _name(copy, path)
    sync_folder(path.parent)


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file in one step; only a retraction does this."""
    with _synced_copy(path, content) as copy:
        os.replace(copy, path)
    sync_folder(path.parent)


def rename_new(path: Path, new: Path) -> None:
    """Give the file another name. Raises :class:`OmniError` when that is taken."""
    _name(path, new)
    # Where the name was moved rather than given, it is gone already.
    path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Names of files are on disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(source: Path, path: Path) -> None:
    """Give the whole file ``source`` the name ``path``, which nobody has."""
    try:
        # Unlike a rename, a link does not replace a file that has appeared meanwhile.
        os.link(source, path)
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError:
        # A file system without links. An empty file takes the name first, which only one can do.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError as error:
            raise _taken(path) from error
        try:
            os.replace(source, path)
        except OSError:
            path.unlink()
            raise


def _taken(path: Path) -> OmniError:
    return OmniError(f"{path}: expected a new file, found one: results are never overwritten")


@contextmanager
def _synced_copy(path: Path, content: dict[str, Any]) -> Iterator[Path]:
    """A temporary file beside ``path`` that holds ``content``, on disk; its name is gone afterwards."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(_lines(content))
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _lines(content: dict[str, Any]) -> Iterator[str]:
    """A line for every key, and for every item of a list, such as a run: a hundred points of memory are not
    six hundred lines."""

    def compact(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    opening = "{"
    for key, value in content.items():
        yield f"{opening}\n{json.dumps(key)}: "
        if isinstance(value, list) and value:
            yield "[\n" + ",\n".join(map(compact, value)) + "\n]"
        else:
            yield compact(value)
        opening = ","
    yield "\n}\n" if content else "{}\n"


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
