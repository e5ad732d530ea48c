"""Artifacts are published: whatever names a user's folders is shortened first."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def scrub(text: str) -> str:
    """The repository becomes ``.``, the home folder ``~``, and of any other absolute path below a user's,
    a temporary or a work folder the last part remains, after ``…/``."""
    for folder, short in ((str(REPOSITORY), "."), (str(Path.home()), "~")):
        if folder != "/":
            text = re.sub(rf"{re.escape(folder)}(?=[/:\s\"',;)]|$)", short, text)
    return re.sub(
        r"(?<![\w.~…-])/(?:home|root|Users|tmp|var/tmp|mnt|media|work|scratch|data)/[^\s\"',:;)]*",
        _last_part,
        text,
    )


def _last_part(match: re.Match[str]) -> str:
    return "…/" + match.group().rstrip("/").rpartition("/")[2]
