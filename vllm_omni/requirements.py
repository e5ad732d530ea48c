"""What the host must be before any other part of this package may be imported.

`__init__` enforces it, and so does the command: another distribution that installs into the same package
folder may have replaced our `__init__`, but not this file.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import PurePath

# Installs into the same package folder, `vllm_omni`: whichever of the two comes second overwrites files of
# the first, and neither works.
CONFLICTING_DISTRIBUTION = "vllm-omni"
OWN_DISTRIBUTION = "vllm-omni-edge"
COMMAND = "vllm-omni"

_X86_64_NAMES = frozenset({"x86_64", "AMD64", "amd64"})


def refusal() -> str | None:
    """Why this package cannot work here, as one line; ``None`` when it can."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in _X86_64_NAMES:
        found = f"{system or 'unknown'} on {machine or 'unknown'}"
        return f"{OWN_DISTRIBUTION} needs Linux on x86-64; this is {found}"
    try:
        found = metadata.version(CONFLICTING_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    return (
        f"{OWN_DISTRIBUTION} and {CONFLICTING_DISTRIBUTION} {found} install into the same package folder, "
        f"vllm_omni, and cannot share an environment: run `pip uninstall {CONFLICTING_DISTRIBUTION} "
        f"{OWN_DISTRIBUTION}`, then install the one you want"
    )


def enforce() -> None:
    """Raise ``ImportError`` with :func:`refusal`'s line; in the command, print the line and exit with 2."""
    why = refusal()
    if why is None:
        return
    if sys.argv and PurePath(sys.argv[0]).name == COMMAND:
        print(f"error: {why}", file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(why)
