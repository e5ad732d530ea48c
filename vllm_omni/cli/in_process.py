"""vLLM inside the calling process, for measuring programs: what must be in the environment before vLLM is
imported, and what must be there before the process begins."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_omni.errors import OmniError
from vllm_omni.settings import PREFIX, Settings

IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
# vLLM's own switch; "nobind" leaves the threads to the kernel.
BIND = "VLLM_CPU_OMP_THREADS_BIND"
_OPENMP = ("libomp", "libgomp", "libiomp")
# The machines on which vLLM preloads its allocator, where the wheel has one.
_TCMALLOC_MACHINES = ("x86_64", "AMD64", "aarch64", "arm64", "s390x")


def prepare(*, in_process: bool = True, stock: bool = False, cache_root: Path | None = None) -> None:
    """Choose the engine's layout, whether our plugin acts, and the folder of its compile cache.

    ``in_process``: the engine's worker runs in this process. ``stock``: the plugin does nothing. Raises
    :class:`OmniError` when the environment already says that the plugin is off, and ``stock`` is not wanted:
    a measurement would be labelled wrong.
    """
    disabled = Settings.from_env().disable
    if disabled and not stock:
        raise OmniError(f"{PREFIX}DISABLE=1: expected 0, or --stock: the plugin would not run")
    if stock:
        os.environ[PREFIX + "DISABLE"] = "1"
    os.environ[IN_PROCESS] = "0" if in_process else "1"
    if cache_root is not None:
        os.environ["VLLM_CACHE_ROOT"] = str(cache_root)
        # What is compiled outside vLLM's own folder must not be found there by the next cold start.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_root / "inductor")
    # Greedy decoding needs no usage report, and a measured process talks to nobody.
    os.environ["VLLM_NO_USAGE_STATS"] = "1"


def worker_variables(cores: Sequence[int], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What vLLM gives a worker process of its own for OpenMP threads on ``cores``: the runtime and the
    allocator to preload, the number of threads and one core for each. In ``env`` (default: this process's)
    only ``LD_PRELOAD`` and vLLM's switch are looked at; the rest is replaced, as vLLM does."""
    env = os.environ if env is None else env
    preload = _preload(env.get("LD_PRELOAD", ""))
    found = {"LD_PRELOAD": preload} if preload else {}
    if env.get(BIND) == "nobind":
        return found
    names = [str(core) for core in cores]
    found["OMP_NUM_THREADS"] = str(len(names))
    if "libiomp" in preload or "libomp" in preload:
        found["KMP_AFFINITY"] = f"granularity=fine,explicit,proclist=[{','.join(names)}]"
        found["KMP_BLOCKTIME"] = "5"
        found["KMP_TPAUSE"] = "0"
    elif "libgomp" in preload:
        found["GOMP_CPU_AFFINITY"] = " ".join(names)
    else:
        found["OMP_PLACES"] = f"{{{','.join(names)}}}"
        found["OMP_PROC_BIND"] = "true"
    return found


def restart(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Begin this process anew with ``variables``, which a library reads when it is loaded, and
    ``arguments`` after those that it has. Returns where the environment holds them already."""
    if all(os.environ.get(name) == value for name, value in variables.items()):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *sys.orig_argv[1:], *arguments]
    os.execve(sys.executable, command, {**os.environ, **variables})


def _preload(given: str) -> str:
    """``LD_PRELOAD`` as vLLM extends it: torch's libgomp behind what is there, its allocator in front."""
    if platform.system() != "Linux":
        return given
    torch, vllm = _package("torch"), _package("vllm")
    if torch is not None and not any(name in given for name in _OPENMP):
        folders = (torch.parent / "torch.libs", torch / "lib")
        libraries = [file for folder in folders for file in folder.glob("libgomp*.so*")]
        given = ":".join(filter(None, (given, *map(str, libraries[:1]))))
    if vllm is not None and "libtcmalloc" not in given and platform.machine() in _TCMALLOC_MACHINES:
        patterns = ("libtcmalloc_minimal*.so*", "libtcmalloc.so*")
        libraries = [file for pattern in patterns for file in (vllm / "libs").glob(pattern)]
        given = ":".join(filter(None, (*map(str, libraries[:1]), given)))
    return given


def _package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
