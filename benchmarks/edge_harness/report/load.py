"""Which artifacts a report is of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from benchmarks.edge_harness.artifact.file import read, read_json
from benchmarks.edge_harness.artifact.schema import FORMAT, Artifact, Retraction
from vllm_omni.errors import OmniError


@dataclass(frozen=True)
class Source:
    """A result file under the name that the report gives it. ``artifact`` is ``None`` for a retracted file of
    another schema: its figures are unreadable, and none may be used anyway."""

    name: str
    artifact: Artifact | None
    retraction: Retraction | None


def load(places: Iterable[Path]) -> list[Source]:
    """The result files among ``places``, folders searched whole. Other JSON in a folder is passed over.
    Raises :class:`OmniError` for a result file that is invalid, and for a named file that is none."""
    found: dict[Path, Source] = {}
    for place in places:
        if place.is_dir():
            files = [path for path in sorted(place.rglob("*.json")) if _is_result(path)]
            named = {path: str(path.relative_to(place)) for path in files}
        elif place.is_file():
            named = {place: place.name}
        else:
            raise OmniError(f"{place}: expected a result file or a folder of them, found nothing")
        for path, name in named.items():
            found.setdefault(path.resolve(), _source(path, name))
    if not found:
        raise OmniError(f"{', '.join(map(str, places))}: expected result files, found none")
    return list(found.values())


def _is_result(path: Path) -> bool:
    try:
        return read_json(path).get("format") == FORMAT
    except OmniError:
        return False


def _source(path: Path, name: str) -> Source:
    content = read_json(path)
    if content.get("retraction") is None:
        return Source(name, read(path), None)
    try:
        retraction = Retraction.model_validate(content["retraction"])
    except ValidationError as error:
        raise OmniError(f"{path}: retraction: {error.errors()[0]['msg']}") from error
    try:
        return Source(name, Artifact.model_validate(content), retraction)
    except ValidationError:
        return Source(name, None, retraction)
