"""Options that every command hands to the program that builds its engine."""

from __future__ import annotations

import json
from pathlib import Path

from vllm_omni.errors import OmniError


def engine_options(
    *,
    stock: bool,
    engine_args: str,
    cache_root: Path | None,
    ceiling: bool = True,
    threads: int | None = None,
) -> list[str]:
    """The arguments. Raises :class:`OmniError` where ``engine_args`` is not a JSON object."""
    try:
        parsed = json.loads(engine_args)
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise OmniError(f"--engine-args {engine_args}: expected a JSON object")
    return [
        *("--engine-args", json.dumps(parsed)),
        *(("--stock",) if stock else ()),
        *(("--cache-root", str(cache_root.resolve())) if cache_root is not None else ()),
        *(() if ceiling else ("--no-ceiling",)),
        *(("--threads", str(threads)) if threads is not None else ()),
    ]
