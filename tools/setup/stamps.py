"""Marks of finished stages inside .venv: each holds a digest of what the stage was made from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from packages import dependencies

PACKAGE_FILES = ("requirements.in", "overrides.txt", "constraints.txt", "model.txt")
EXTENSION_PATTERNS = (
    "Cargo.toml",
    ".cargo/config.toml",
    "pyproject.toml",
    "rust/**/Cargo.toml",
    "rust/**/*.rs",
)


def digest(paths: Iterable[Path], root: Path) -> str:
    """SHA-256 over names and contents, in the order of the names."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root)} {content}\n".encode())
    return total.hexdigest()


def packages_digest(root: Path) -> str:
    """Of everything that decides which packages .venv holds, but for the choice of torch build."""
    files = digest((root / "tools/setup" / name for name in PACKAGE_FILES), root)
    own = hashlib.sha256("\n".join(dependencies(root)).encode()).hexdigest()
    return f"{files} {own}"


def sources_digest(root: Path) -> str:
    """Of everything that decides what the build of the extension gives, but for Cargo.lock."""
    return digest({path for pattern in EXTENSION_PATTERNS for path in root.glob(pattern)}, root)


def lock_digest(root: Path) -> str:
    """Of Cargo.lock, which the build itself may write."""
    return digest(root.glob("Cargo.lock"), root)


class Stamp:
    """One stage's mark. It is cleared before the stage begins and written when all of it is done."""

    def __init__(self, venv: Path, stage: str) -> None:
        self.path = venv / ".setup" / stage

    def holds(self, value: str) -> bool:
        try:
            return self.path.read_text() == value
        except OSError:
            return False

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)

    def write(self, value: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(value)
        os.replace(unfinished, self.path)
