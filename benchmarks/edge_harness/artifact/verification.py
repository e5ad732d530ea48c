"""Whether result files may be used: each is a valid artifact, or retracted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchmarks.edge_harness.artifact.file import read, read_json
from benchmarks.edge_harness.artifact.retraction import successor
from benchmarks.edge_harness.artifact.schema import Artifact, Retraction
from vllm_omni.errors import OmniError

_USER_PATH = re.compile(r"(?<![\w.~…-])/(?:home|root|Users)/\w")


@dataclass(frozen=True)
class FileVerdict:
    path: Path
    state: Literal["valid", "retracted", "invalid"]
    why: str


def result_files(places: Iterable[Path]) -> list[Path]:
    """The JSON files of files and folders. Raises :class:`OmniError` for a place that does not exist, and
    when there is no file at all: nothing verified is not a success."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += sorted(place.rglob("*.json"))
        elif place.is_file():
            found.append(place)
        else:
            raise OmniError(f"{place}: expected a result file or a folder of them, found nothing")
    if not found:
        raise OmniError(f"{', '.join(map(str, places))}: expected result files, found none")
    return found


def verify(paths: Iterable[Path]) -> Iterator[FileVerdict]:
    """A verdict for each file."""
    for path in paths:
        try:
            yield _verify(path)
        except OmniError as error:
            yield FileVerdict(path, "invalid", str(error).removeprefix(f"{path}: "))


def _verify(path: Path) -> FileVerdict:
    content = read_json(path)
    if content.get("retraction") is not None:
        try:
            retraction = Retraction.model_validate(content["retraction"])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            return FileVerdict(path, "invalid", f"retraction.{where}: {first['msg']}")
        if retraction.superseded_by is not None and successor(path, retraction.superseded_by) is None:
            why = f"retraction.superseded_by names {retraction.superseded_by}, which does not exist"
            return FileVerdict(path, "invalid", why)
        return FileVerdict(path, "retracted", retraction.reason)
    artifact = read(path)
    if leak := _USER_PATH.search(path.read_text()):
        return FileVerdict(path, "invalid", f"names a user's folder: {leak.group()}…")
    wrong = next(_contradictions(artifact), None)
    return FileVerdict(path, "invalid", wrong) if wrong else FileVerdict(path, "valid", artifact.title)


def _contradictions(artifact: Artifact) -> Iterator[str]:
    """What a schema cannot say."""
    if artifact.provenance.software.git_commit is None:
        yield "provenance.software.git_commit: expected the commit that was measured, found none"
    if artifact.kind != "grid":
        return
    if artifact.spec is None:
        yield "spec: expected the specification of a grid, found none"
        return
    if artifact.spec.sha256() != artifact.spec_sha256:
        yield "spec_sha256: is not the digest of spec"
    tags = {arm.tag for arm in artifact.arms}
    if strangers := sorted({run.tag for run in artifact.runs} - tags):
        yield f"runs: arm {strangers[0]} has no provenance in arms"
    seen: set[tuple[str, int]] = set()
    for run in artifact.runs:
        if (run.tag, run.pass_no) in seen:
            yield f"runs: arm {run.tag} ran twice in pass {run.pass_no}"
        seen.add((run.tag, run.pass_no))
        if (run.status == "ok") != (run.reason is None):
            yield f"runs: arm {run.tag}, pass {run.pass_no}: status {run.status} with reason {run.reason}"
    if artifact.complete and artifact.runs:
        passes = max(run.pass_no for run in artifact.runs)
        ran = {run.tag for run in artifact.runs}
        if len(seen) != passes * len(ran):
            yield f"complete: expected {passes * len(ran)} runs, found {len(seen)}"
