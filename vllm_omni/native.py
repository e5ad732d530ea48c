"""The native library, or the reason why it is not in use."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from types import ModuleType

from vllm_omni.errors import OmniError
from vllm_omni.settings import Settings

# A child of the "vllm" logger: vLLM configures that tree only.
_log = logging.getLogger("vllm.omni_edge")


@dataclass(frozen=True)
class Native:
    """``module`` is ``vllm_omni._rust``, or None with a ``reason``."""

    module: ModuleType | None
    reason: str = ""


@functools.cache
def native() -> Native:
    """Load the native library once, at the instruction set level that the settings name.

    Tiles (AMX) of the CPU that failed their check are one warning each. Raises :class:`OmniError` when that
    level is one the machine lacks.
    """
    settings = Settings.from_env(strict=False)
    if not settings.native:
        return Native(None, "hidden by VLLM_OMNI_EDGE_NATIVE=0")
    try:
        from vllm_omni import _rust
    except ImportError as error:
        return Native(None, f"the native library does not load: {error}")
    if settings.isa != "auto":
        try:
            _rust.set_isa_level(settings.isa)
        except ValueError as error:
            raise OmniError(f"VLLM_OMNI_EDGE_ISA={settings.isa}: {error}") from error
    for reason in _rust.tiles_left_out():
        _log.warning("AMX: %s", reason)
    return Native(_rust)
