"""What vLLM's key of a compiled model leaves out: the CPU, the number of threads, this package.

torch.compile writes C++ for the instruction sets of the CPU that it runs on, cuts loops for the number of
threads, and keeps constants that this package handed to it. vLLM keys what it saves by its own environment
variables and configuration and checks again only the files that were traced, so a cache on a shared home
folder, a start with another number of cores, or a new version of this package finds code for something else.
That harms only where saved code is loaded again, which ``vllm_omni.patches.saved_model`` makes possible: this
key comes with it.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from pathlib import Path

from vllm_omni import settings

# In vLLM's table of its variables, each of which is part of the key. It is set by nobody.
FACTOR = "VLLM_OMNI_EDGE_COMPILED_FOR"

# Read by inductor, and not by vLLM: the instruction sets that it may use, and the compiler.
_OF_INDUCTOR = ("ATEN_CPU_CAPABILITY", "CXX")


def register() -> None:
    """Add the machine and this package to the key of every model that vLLM compiles in this process."""
    from vllm import envs

    envs.environment_variables[FACTOR] = compiled_for


def compiled_for(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Threads that torch computes on, digests of the CPU's flags (the same on all of its cores) and of this
    package, and what inductor is told by the environment. Never the same twice where the flags cannot be
    read: then nothing that was saved is loaded."""
    import torch

    told = ",".join(f"{name}={value}" for name, value in settings.given(*_OF_INDUCTOR).items())
    return f"{torch.get_num_threads()} threads, flags {_flags(cpuinfo)}, package {_package()}, {told}"


def _flags(cpuinfo: Path) -> str:
    try:
        first, _, _ = cpuinfo.read_text().partition("\n\n")
    except OSError:
        return secrets.token_hex()
    flags = next((line for line in first.splitlines() if line.startswith("flags")), "")
    return _digest(" ".join(sorted(flags.split())).encode())


@functools.cache
def _package(root: Path = Path(__file__).parent) -> str:
    """A digest of the Python files and of the native library."""
    files = sorted([*root.rglob("*.py"), *root.glob("_rust*.so")])
    return _digest(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
