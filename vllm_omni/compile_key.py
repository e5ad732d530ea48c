"""What vLLM's key of a compiled model leaves out: the CPU's instruction sets and the number of threads.

torch.compile writes C++ for the CPU that it runs on, with the thread count as a constant. vLLM keys what it
saves by its own environment variables and configuration, so a cache on a shared home folder, or a second
start with another number of cores, finds code for another machine. That harms only where saved code is
loaded again, which ``vllm_omni.patches.saved_model`` makes possible: this key comes with it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

# In vLLM's table of its variables, each of which is part of the key. It is set by nobody.
FACTOR = "VLLM_OMNI_EDGE_COMPILED_FOR"


def register() -> None:
    """Add the machine to the key of every model that vLLM compiles in this process."""
    from vllm import envs

    envs.environment_variables[FACTOR] = compiled_for


def compiled_for(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Threads that torch computes on, and a digest of the CPU's flags (the same on all of its cores)."""
    import torch

    first, _, _ = cpuinfo.read_text().partition("\n\n")
    flags = next((line for line in first.splitlines() if line.startswith("flags")), "")
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return f"{torch.get_num_threads()} threads, flags {digest[:16]}"
