"""Which build is measured: told at the start of a grid, and again at its end.

A grid takes hours, and who rebuilds the library or edits the sources meanwhile has measured two things under
one name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from benchmarks.edge_harness.provenance.model import file_sha256
from benchmarks.edge_harness.provenance.software import git_output
from vllm_omni.native import native

_REPLACED = " (deleted)"
# What a program under test may execute. The results that a grid writes meanwhile are no change.
_SOURCES = ("vllm_omni", "rust", "benchmarks", ":(exclude,glob)**/results/**")


def build_text() -> str:
    """Commit, a digest of what differs from it, and a digest of the library, in one line."""
    commit = git_output("rev-parse", "--verify", "--quiet", "HEAD")
    changes = git_output("status", "--porcelain", "--", *_SOURCES)
    difference = git_output("diff", "HEAD", "--", *_SOURCES)
    changed = ""
    if changes:
        digest = hashlib.sha256(f"{changes}\n{difference}".encode(errors="replace")).hexdigest()
        changed = f" with changes {digest[:12]}"
    return f"commit {(commit or 'unknown')[:12]}{changed}, library {(library_sha256() or 'none')[:12]}"


def library_sha256(maps: Path = Path("/proc/self/maps")) -> str | None:
    """Digest of the library under the path where this process has it mapped; ``None`` without one. Of a file
    that was replaced since it is that of the new one, which is what the next process loads."""
    library = native().module
    if library is None:
        return None
    name = Path(str(library.__file__))
    return file_sha256(mapped_file(maps.read_text(), name) or name)


def mapped_file(maps: str, library: Path) -> Path | None:
    """The path under which ``library`` is mapped, by the text of a ``maps`` file."""
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            path = Path(fields[5].removesuffix(_REPLACED))
            if path.name == library.name:
                return path
    return None
