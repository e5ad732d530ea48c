"""Artifacts are published: whatever names a user's folders is shortened first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]

# An absolute path into somebody's folder, wherever that is mounted, or into one for temporary or own files.
# It begins a word or follows a flag of one letter, as compilers have; a part of a longer path does not count.
USER_PATH = re.compile(
    r"(?:(?<![\w.~…/-])|(?<=-[A-Za-z]))/"
    r"(?:(?:[^\s\"',:;)/]+/)*(?:home|Users)"
    r"|root|tmp|var/tmp|mnt|media|work|workspace|workspaces|scratch|data|gpfs|lustre|nfs)"
    r"/[^\s\"',:;)]*"
)
_HOME_ITSELF = re.compile(r"/(?:home|Users)/[^/]+$")


def scrub(text: str) -> str:
    """The repository becomes ``.``, the home folder ``~``, and of any other path of :data:`USER_PATH` the
    last part remains, after ``…/``; of a home folder itself nothing does."""
    for folder, short in ((str(REPOSITORY), "."), (str(Path.home()), "~")):
        if folder != "/":
            text = re.sub(rf"{re.escape(folder)}(?=[/:\s\"',;)]|$)", short, text)
    return USER_PATH.sub(_last_part, text)


def scrub_values(value: Any) -> Any:
    """``value``, as JSON has it, with every text and key scrubbed."""
    if isinstance(value, str):
        # Half of a surrogate pair, which JSON can spell, is no text that a file can hold.
        return scrub(value.encode("utf-8", "replace").decode())
    if isinstance(value, list):
        return [scrub_values(item) for item in value]
    if isinstance(value, dict):
        return {scrub_values(key): scrub_values(item) for key, item in value.items()}
    return value


def user_paths(value: Any) -> Iterator[str]:
    """Every path in ``value``, as JSON has it, that scrubbing would have shortened."""
    if isinstance(value, str):
        yield from (match.group() for match in USER_PATH.finditer(value))
    elif isinstance(value, list):
        for item in value:
            yield from user_paths(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from user_paths(key)
            yield from user_paths(item)


def _last_part(match: re.Match[str]) -> str:
    path = match.group().rstrip("/")
    return "…" if _HOME_ITSELF.search(path) else "…/" + path.rpartition("/")[2]
