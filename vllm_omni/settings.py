"""The environment, read in one place.

========================  ======================================  =========================================
``VLLM_OMNI_EDGE_ISA``     ``auto`` | ``scalar`` | ``avx2`` |      forces a lower instruction set than the
                           ``avx_vnni`` | ``avx512`` | ``amx``     machine has; to ask for one that it lacks
                           (default ``auto``)                      is an error. AMX: not verified on hardware,
                                                                   compared with emulated tiles before use
``VLLM_OMNI_EDGE_NATIVE``  ``1`` | ``0`` (default ``1``)           ``0`` hides the native library: the
                                                                   portable operators compute everything
``VLLM_OMNI_EDGE_DISABLE`` ``0`` | ``1`` (default ``0``)           ``1``: the vLLM plugin does nothing
``…_FAILURE_FILE``         path (set by ``vllm-omni serve``)       where an engine process writes the cause of
                                                                   a failed start, as one line
========================  ======================================  =========================================

Nothing here changes a compiled graph: such options travel in the checkpoint's config.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from vllm_omni.errors import OmniError

PREFIX = "VLLM_OMNI_EDGE_"

IsaName = Literal["auto", "scalar", "avx2", "avx_vnni", "avx512", "amx"]

_ALLOWED: dict[str, tuple[str, ...]] = {
    PREFIX + "ISA": get_args(IsaName),
    PREFIX + "NATIVE": ("1", "0"),
    PREFIX + "DISABLE": ("0", "1"),
}

# Set by our commands for the engine's processes; the value is a path.
FAILURE_FILE = PREFIX + "FAILURE_FILE"

# A child of the "vllm" logger: vLLM configures that tree only.
_log = logging.getLogger("vllm.omni_edge")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for."""

    isa: IsaName = "auto"
    native: bool = True
    disable: bool = False
    failure_file: Path | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, strict: bool = True) -> Settings:
        """Read ``env`` (default: this process's environment).

        With ``strict`` an unknown ``VLLM_OMNI_EDGE_*`` name or a value outside the allowed ones raises
        :class:`OmniError`. Without it (in the vLLM plugin, where an exception would end the engine) each is
        logged as a warning and the default holds.
        """
        env = os.environ if env is None else env
        values = {name: allowed[0] for name, allowed in _ALLOWED.items()}
        for name in sorted(name for name in env if name.startswith(PREFIX) and name != FAILURE_FILE):
            complaint = _complaint(name, env[name])
            if complaint is None:
                values[name] = env[name]
            elif strict:
                raise OmniError(complaint)
            else:
                _log.warning("%s; it is ignored", complaint)
        return cls(
            isa=cast(IsaName, values[PREFIX + "ISA"]),
            native=values[PREFIX + "NATIVE"] == "1",
            disable=values[PREFIX + "DISABLE"] == "1",
            failure_file=Path(env[FAILURE_FILE]) if env.get(FAILURE_FILE) else None,
        )


def _complaint(name: str, value: str) -> str | None:
    allowed = _ALLOWED.get(name)
    if allowed is None:
        return f"unknown environment variable {name}: expected one of {', '.join(sorted(_ALLOWED))}"
    if value not in allowed:
        return f"environment variable {name} is {value!r}: expected {' or '.join(allowed)}"
    return None


def given(*names: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of vLLM's and OpenMP's variables ``names`` that the user has set, with their values."""
    env = os.environ if env is None else env
    return {name: env[name] for name in names if env.get(name)}


def inherited(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every variable of this process, to build a child's environment from."""
    return dict(os.environ if env is None else env)


# Variables that change how fast an engine is, how much memory it takes or what it computes with.
_PERFORMANCE = re.compile(
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|DNNL|ONEDNN|MALLOC|TCMALLOC|TORCH|TORCHINDUCTOR|PYTORCH|NUMEXPR)_\w+"
    r"|VLLM_(CPU|USE|ENABLE|CACHE|PLUGINS|TARGET|WORKER|COMPILE|DISABLE)\w*"
    r"|LD_PRELOAD|GLIBC_TUNABLES|ATEN_CPU_CAPABILITY|PYTHONHASHSEED|CUDA_VISIBLE_DEVICES"
)
# Of a variable's name; a tokenizer's are none, and a path is no personal access token.
_SECRET = re.compile(
    r"KEY|TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|PWD|CREDENTIAL|(?<![A-Z])PAT(?![A-Z])|AUTH(?!OR)", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Whether the variable ``name`` may hold a secret, by its name."""
    return _SECRET.search(name) is not None


def own_variables(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our variables that are set, but for paths that our commands hand to their children."""
    env = os.environ if env is None else env
    return {name: env[name] for name in sorted(env) if name.startswith(PREFIX) and name != FAILURE_FILE}


def performance_variables(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Allow-listed variables that change what is measured, for an artifact's provenance; never a secret."""
    env = os.environ if env is None else env
    return {name: env[name] for name in sorted(env) if _PERFORMANCE.fullmatch(name) and not is_secret(name)}


def user_cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """Where this user's rebuildable files belong: ``$XDG_CACHE_HOME`` or ``~/.cache``, then our name."""
    env = os.environ if env is None else env
    base = env.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "vllm-omni-edge"
