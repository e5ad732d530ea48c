"""Whether result files may be used: each is a valid artifact, or retracted.

What the schema and this file say holds for every kind; ``also`` is what a caller knows of some kinds besides,
as that the figures of a grid follow from its runs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchmarks.edge_harness.artifact.file import read, read_json
from benchmarks.edge_harness.artifact.retraction import successor
from benchmarks.edge_harness.artifact.schema import Artifact, Retraction
from benchmarks.edge_harness.provenance.scrub import user_paths
from vllm_omni.errors import OmniError

Also = Callable[[Artifact], Iterator[str]]

# A grid's scratch folder: what its programs leave there is no result.
_WORK_SUFFIX = ".work"


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
            below = (path.relative_to(place) for path in place.rglob("*.json"))
            found += sorted(place / path for path in below if not _is_scratch(path))
        elif place.is_file():
            found.append(place)
        else:
            raise OmniError(f"{place}: expected a result file or a folder of them, found nothing")
    if not found:
        raise OmniError(f"{', '.join(map(str, places))}: expected result files, found none")
    return found


def tracked_results(root: Path) -> list[Path]:
    """The results that git tracks below ``root``, or outside a checkout those that lie there: JSON in folders
    called ``results`` and in ``baselines``; other JSON (specifications) is no result."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--", "*.json"], cwd=root, capture_output=True, text=True, check=True
        ).stdout
        files = [Path(name) for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        folders = [root / name for name in ("benchmarks", "baselines") if (root / name).is_dir()]
        files = [path.relative_to(root) for path in result_files(folders)]
    found = [
        root / file
        for file in files
        if {"results", "baselines"} & set(file.parts[:-1])
        and "node_modules" not in file.parts
        and not _is_scratch(file)
        and (root / file).is_file()
    ]
    if not found:
        raise OmniError(f"{root}: expected result files, found none")
    return found


def verify(paths: Iterable[Path], also: Also = lambda artifact: iter(())) -> Iterator[FileVerdict]:
    """A verdict for each file."""
    for path in paths:
        try:
            yield _verify(path, also)
        except OmniError as error:
            yield FileVerdict(path, "invalid", str(error).removeprefix(f"{path}: "))


def _is_scratch(path: Path) -> bool:
    return any(part.endswith(_WORK_SUFFIX) for part in path.parts)


def _verify(path: Path, also: Also) -> FileVerdict:
    content = read_json(path)
    # Retracted or not: it is published.
    if leak := next(user_paths(content), None):
        return FileVerdict(path, "invalid", f"names a user's folder: {leak:.60}")
    if content.get("retraction") is not None:
        try:
            retraction = Retraction.model_validate(content["retraction"])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(("retraction", *map(str, first["loc"])))
            return FileVerdict(path, "invalid", f"{where}: {first['msg']}")
        if retraction.superseded_by is not None and successor(path, retraction.superseded_by) is None:
            why = f"retraction.superseded_by names {retraction.superseded_by}, which does not exist"
            return FileVerdict(path, "invalid", why)
        return FileVerdict(path, "retracted", retraction.reason)
    artifact = read(path)
    wrong = next(_contradictions(artifact), None) or next(also(artifact), None)
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
