"""A compile cache for each arm, empty when the grid begins.

Without one, arms share vLLM's cache: the first to run compiles for the others, and start times mean nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

# vLLM's compiled graphs, torch.compile's kernels, Triton's.
_FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}


class CompileCaches:
    """The arms' caches below ``root``. An arm's cache is cold until one of its runs has ended well, and a
    cold one is empty: what a crashed run left is neither."""

    def __init__(self, root: Path, warm: Iterable[str] = ()) -> None:
        self._root = root
        self._warm = set(warm)

    def prepare(self, tag: str) -> tuple[dict[str, str], bool]:
        """Variables for a run of arm ``tag``, and whether its cache is cold; the folders are made."""
        cold = tag not in self._warm or not (self._root / tag).is_dir()
        if cold:
            shutil.rmtree(self._root / tag, ignore_errors=True)
        folders = {name: self._root / tag / folder for name, folder in _FOLDERS.items()}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        return {name: str(folder.resolve()) for name, folder in folders.items()}, cold

    def holds_files(self, tag: str) -> bool:
        """Whether a run of arm ``tag`` has left anything: a program that compiles nothing has no cold run."""
        return any(path.is_file() for path in (self._root / tag).rglob("*"))

    def filled(self, tag: str) -> None:
        """A run of arm ``tag`` ended with exit code 0."""
        self._warm.add(tag)
