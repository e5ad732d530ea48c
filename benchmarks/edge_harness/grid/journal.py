"""Every finished run on disk before the next one starts, one JSON line each, beside the artifact to be.

The first line says which grid it is; a ``started`` line names the process of the run in flight, so that a
grid that goes on after a kill can end it. A last line that a kill tore off is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import Field, ValidationError

from benchmarks.edge_harness.artifact.file import sync_folder
from benchmarks.edge_harness.artifact.schema import Load, Record, Run, Software
from vllm_omni.errors import OmniError

FORMAT: Literal["edge-harness-journal/1"] = "edge-harness-journal/1"


class Identity(Record):
    """What must be the same for a grid to go on."""

    spec_sha256: str
    passes: int
    cores: list[int]
    metric: str
    build: str | None
    """Commit and library that are measured."""
    programs_sha256: str | None = None
    """Of the arms' command lines, variables and models as they run here, folders and all."""


class Header(Identity):
    """And what was true when it began."""

    format: Literal["edge-harness-journal/1"]
    load_before: Load
    notes: list[str]
    software: Software | None = None


class Seen(Record):
    """Of one run, what belongs to the arm or to the whole grid rather than to the run's own record."""

    allocator: str | None = None
    openmp_runtimes: list[str] = Field(default_factory=list)
    threads: int | None = None
    outlived: list[str] = Field(default_factory=list)
    monitor_samples: int = 0
    monitor_cpu_s: float = 0.0
    memory_problem: str | None = None
    unread: list[str] = Field(default_factory=list)
    allowed_cores: list[int] = Field(default_factory=list)


class Entry(Record):
    run: Run
    seen: Seen


class Started(Record):
    """The process of a run, with the start time that tells it from a later one of the same number. Written
    once before there is a process, when the token is all that will tell, and again when there is one."""

    tag: str
    pass_no: int = Field(ge=1)
    token: str
    pid: int | None
    start_ticks: int | None


@dataclass(frozen=True)
class Recorded:
    """What a journal holds. ``in_flight``: the run that had started and not finished."""

    header: Header
    entries: list[Entry]
    in_flight: Started | None


def journal_path(out: Path) -> Path:
    """The journal of the artifact ``out``."""
    return out.with_name(f"{out.name}.runs.jsonl")


def refuse(path: Path) -> None:
    """Raise :class:`OmniError` when there is a journal."""
    if path.exists():
        raise OmniError(
            f"{path}: expected none, found the runs of an unfinished grid: "
            "go on with --resume, or choose another --out"
        )


def expect(path: Path) -> None:
    """Raise :class:`OmniError` when there is none."""
    if not path.exists():
        raise OmniError(f"--resume: {path}: expected the runs of an unfinished grid, found none")


class Journal:
    """Append-only, synced line by line, locked: one grid at a time."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file

    @classmethod
    def create(cls, path: Path, header: Header) -> Journal:
        """A new journal. Raises :class:`OmniError` when there is one already."""
        refuse(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("xb")
        _lock(file, path)
        journal = cls(path, file)
        journal._append(header.model_dump(mode="json"))
        sync_folder(path.parent)
        return journal

    @classmethod
    def resume(cls, path: Path, wanted: Identity) -> tuple[Journal, Recorded]:
        """Go on with the journal of the same grid. Raises :class:`OmniError` when it is of another."""
        expect(path)
        file = path.open("r+b")
        _lock(file, path)
        try:
            recorded, length = _read(path, file.read())
            _refuse_another(path, recorded.header, wanted)
        except OmniError:
            file.close()
            raise
        # What a kill tore off must not run into the next line.
        file.truncate(length)
        file.seek(length)
        return cls(path, file), recorded

    def started(self, started: Started) -> None:
        self._append({"started": started.model_dump(mode="json")})

    def finished(self, entry: Entry) -> None:
        """On disk when this returns."""
        self._append(entry.model_dump(mode="json"))

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """The artifact holds all of it."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def _append(self, content: dict[str, object]) -> None:
        self._file.write(json.dumps(content, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _read(path: Path, data: bytes) -> tuple[Recorded, int]:
    """What the journal holds, and how many bytes of it are whole lines."""
    lines = list(_whole_lines(data))
    length = sum(len(line) + 1 for line in lines)
    try:
        header = Header.model_validate_json(lines[0] if lines else b"")
        entries: list[Entry] = []
        in_flight: Started | None = None
        for line in lines[1:]:
            content = json.loads(line)
            if "started" in content:
                in_flight = Started.model_validate(content["started"])
            else:
                entries.append(Entry.model_validate(content))
                in_flight = None
    except (ValidationError, ValueError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise OmniError(f"{path}: expected the runs of a grid, found a damaged file: {first}") from error
    return Recorded(header, entries, in_flight), length


def _whole_lines(data: bytes) -> Iterator[bytes]:
    """Lines that end. Each was written by one call, so only the last can be torn, and then lacks its end."""
    *whole, _torn = data.split(b"\n")
    yield from whole


def _refuse_another(path: Path, found: Identity, wanted: Identity) -> None:
    """Half a grid of one build and half of another would be a comparison of builds under the arms' names."""
    for what, before, now in (
        ("cores", found.cores, wanted.cores),
        ("passes", found.passes, wanted.passes),
        ("metric", found.metric, wanted.metric),
        ("spec digest", found.spec_sha256[:12], wanted.spec_sha256[:12]),
        ("build", found.build, wanted.build),
        ("programs digest", (found.programs_sha256 or "")[:12], (wanted.programs_sha256 or "")[:12]),
    ):
        if before != now:
            raise OmniError(f"--resume: {path} was begun with {what} {before}, found {now} now")


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise OmniError(f"{path}: another grid is writing these runs") from error
