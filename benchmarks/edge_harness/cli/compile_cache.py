"""Whether a program found its compile cache filled, seen by what it left there."""

from __future__ import annotations

from pathlib import Path

from vllm_omni import settings

# Of vLLM's graphs and of what torch.compile makes of them; the rest of the folder is no compiler's.
_FOLDERS = ("torch_compile_cache", "inductor")


class CompileCache:
    """The cache below ``root`` (default: vLLM's own choice) as it is now. A program with a cold cache
    compiles kernels to libraries. Other files say nothing: vLLM 0.28 traces the model anew at every start and
    leaves another graph each time, whose kernels it then finds."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root.resolve() if root is not None else default_root(settings.inherited())
        self._files = self._count()

    def has_grown(self) -> bool:
        """Since the last call, or since this object was made."""
        before, self._files = self._files, self._count()
        return self._files > before

    def _count(self) -> int:
        return sum(1 for name in _FOLDERS for _ in (self._root / name).rglob("*.so"))


def default_root(environment: dict[str, str]) -> Path:
    """As vLLM chooses it."""
    if given := environment.get("VLLM_CACHE_ROOT"):
        return Path(given).expanduser()
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vllm"
