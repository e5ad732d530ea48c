"""What a figure was measured on and with, as plain data for an artifact."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch

import vllm_omni
from vllm_omni import _rust

_REPOSITORY = Path(__file__).resolve().parents[2]
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def collect() -> dict[str, Any]:
    """Machine, software and moment. Values that the system does not tell are None."""
    return {"time_utc": datetime.now(UTC).isoformat(timespec="seconds")} | _machine() | _software()


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache that CPU 0 sees, or None."""
    sizes = [_cache_bytes(path.read_text()) for path in _CACHES.glob("index*/size")]
    return max(sizes, default=None)


def _cache_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20}
    text = text.strip()
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _machine() -> dict[str, Any]:
    cpu = _cpuinfo()
    return {
        "cpu_model": cpu.get("model name"),
        "cpu_family_model_stepping": [cpu.get("cpu family"), cpu.get("model"), cpu.get("stepping")],
        "cpu_flags": cpu.get("flags", "").split(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "cpu_governor": _read(_GOVERNOR),
        "last_level_cache_bytes": last_level_cache_bytes(),
        "memory_bytes": psutil.virtual_memory().total,
        "transparent_hugepages": _read(_THP),
        "load_average": list(os.getloadavg()),
        "kernel_version": platform.release(),
    }


def _software() -> dict[str, Any]:
    # Results that lie about do not change what is measured.
    changes = _output("git", "status", "--porcelain", "--", ".", ":(exclude,glob)benchmarks/**/results/**")
    return {
        "git_commit": _output("git", "rev-parse", "--verify", "--quiet", "HEAD"),
        "git_dirty": None if changes is None else changes != "",
        # The compiler found now; the library's digest says whether two figures come from one build.
        "rustc": _output("rustc", "--version"),
        "library_sha256": hashlib.sha256(Path(str(_rust.__file__)).read_bytes()).hexdigest(),
        "layout_version": _rust.LAYOUT_VERSION,
        "isa_level": _rust.isa_level(),
        "vllm_omni_edge": vllm_omni.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of ``/proc/cpuinfo``."""
    first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _output(*command: str) -> str | None:
    """What the command prints, or None when there is no such program or it fails."""
    try:
        done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
