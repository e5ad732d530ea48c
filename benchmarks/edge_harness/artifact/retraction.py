"""Taking a result back: the file stays, with the reason, the date and what replaces it."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.edge_harness.artifact.file import read_json, replace_json
from benchmarks.edge_harness.artifact.schema import Retraction
from benchmarks.edge_harness.provenance.scrub import scrub
from vllm_omni.errors import OmniError


def retract(path: Path, *, reason: str, superseded_by: str | None, date: str) -> None:
    """Add a retraction to the result file ``path``, of any schema. Raises :class:`OmniError` when it has one,
    when the reason is empty, or when ``superseded_by`` is no other file beside it or below the working
    folder."""
    if not reason.strip():
        raise OmniError("--reason: expected why the figures must not be used, found nothing")
    content = read_json(path)
    found = content.get("retraction")
    if found is not None:
        why = found.get("reason", "") if isinstance(found, dict) else found
        raise OmniError(f"{path}: retracted already: {why}")
    record = Retraction(
        date=date,
        reason=scrub(reason.strip()),
        superseded_by=None if superseded_by is None else _from_file(path, superseded_by),
    )
    replace_json(path, content | {"retraction": record.model_dump(mode="json")})


def successor(path: Path, superseded_by: str) -> Path | None:
    """The file that replaces ``path``, named from the folder of ``path``."""
    file = path.parent / superseded_by
    return file if file.is_file() else None


def _from_file(path: Path, superseded_by: str) -> str:
    """``superseded_by``, named from the working folder or beside ``path``, as named from the folder of
    ``path``: the one name that holds wherever the two files are moved together."""
    named = (Path(superseded_by), path.parent / superseded_by)
    found = next((file for file in named if file.is_file()), None)
    if found is None:
        raise OmniError(f"--superseded-by {superseded_by}: expected a result file, found none")
    if found.samefile(path):
        raise OmniError(f"--superseded-by {superseded_by}: expected another file than the one taken back")
    return os.path.relpath(found.resolve(), path.resolve().parent)
