"""What ``--model`` of the probes must be, before a program takes seconds to import an engine."""

from __future__ import annotations

from pathlib import Path

from vllm_omni.errors import OmniError


def model_folder(path: Path) -> Path:
    """The folder's absolute path. Raises :class:`OmniError` where it holds no ``config.json``."""
    if not path.is_dir():
        what = "a file" if path.exists() else "nothing"
        raise OmniError(f"--model {path}: expected a model folder, found {what}")
    if not (path / "config.json").is_file():
        raise OmniError(f"--model {path}: expected a model folder, found one without config.json")
    return path.resolve()
