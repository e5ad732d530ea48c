"""vLLM inside the calling process, for measuring programs: what must be in the environment before vLLM is
imported."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_omni.errors import OmniError
from vllm_omni.settings import PREFIX, Settings

IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"


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
