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
    another schema: its figures are unreadable, and none may be used anyway. ``problem``: why a JSON file of a
    folder is not shown at all."""

    name: str
    artifact: Artifact | None
    retraction: Retraction | None
    problem: str | None = None


def load(places: Iterable[Path]) -> list[Source]:
    """The result files among ``places``, folders searched whole. JSON of a folder that is no result of this
    format, or cut off, is last, each with its problem. Raises :class:`OmniError` for a result file that is
    invalid, and for a named file that is none."""
    found: dict[Path, Source] = {}
    for place in places:
        if place.is_dir():
            for path in sorted(place.rglob("*.json")):
                name, problem = str(path.relative_to(place)), _why_none(path)
                source = Source(name, None, None, problem) if problem else _source(path, name)
                found.setdefault(path.resolve(), source)
        elif place.is_file():
            # Asked for by name: what a folder passes over is an error here.
            found[place.resolve()] = _source(place, place.name)
        else:
            raise OmniError(f"{place}: expected a result file or a folder of them, found nothing")
    sources = sorted(found.values(), key=lambda source: source.problem is not None)
    if all(source.problem for source in sources):
        passed_over = "".join(f"; {source.name}: {source.problem}" for source in sources)
        raise OmniError(f"{', '.join(map(str, places))}: expected result files, found none{passed_over}")
    return sources


def _why_none(path: Path) -> str | None:
    """Why a JSON file is no result; a retracted one of any schema is."""
    try:
        content = read_json(path)
    except OmniError as error:
        return str(error).removeprefix(f"{path}: ")
    if content.get("format") == FORMAT or content.get("retraction") is not None:
        return None
    return f"expected a result of format {FORMAT}, found {content.get('format') or 'no format'}"


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
