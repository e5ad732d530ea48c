"""Taking a result back: the file stays, with the reason, the date and what replaces it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.edge_harness.artifact.file import read_json, replace_json
from benchmarks.edge_harness.artifact.schema import Retraction
from vllm_omni.errors import OmniError


def retract(path: Path, *, reason: str, superseded_by: str | None, date: str) -> None:
    """Add a retraction to the result file ``path``, of any schema. Raises :class:`OmniError` when it has one,
    when the reason is empty, or when ``superseded_by`` is no file beside it or below the working folder."""
    if not reason.strip():
        raise OmniError("--reason: expected why the figures must not be used, found nothing")
    content = read_json(path)
    if content.get("retraction") is not None:
        raise OmniError(f"{path}: retracted already: {content['retraction'].get('reason', '')}")
    if superseded_by is not None and successor(path, superseded_by) is None:
        raise OmniError(f"--superseded-by {superseded_by}: expected a result file, found none")
    record = Retraction(date=date, reason=reason.strip(), superseded_by=superseded_by)
    replace_json(path, content | {"retraction": record.model_dump(mode="json")})


def successor(path: Path, superseded_by: str) -> Path | None:
    """The file that replaces ``path``: named from the working folder or from the folder of ``path``."""
    return next((file for file in (Path(superseded_by), path.parent / superseded_by) if file.is_file()), None)
