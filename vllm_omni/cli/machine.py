"""What this process may use: cores and memory, as the kernel and the cgroups around the process allow.

A container sees the host's files, so a core count or a memory size read from them alone is the host's. Both
are bounded here by the affinity mask and by every cgroup from the process's own up to the root, of either
version.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """``cores`` are logical CPUs to compute on, one thread each; the reasons name what bounds them."""

    cores: tuple[int, ...]
    cores_reason: str
    available_bytes: int
    available_reason: str

    @classmethod
    def read(cls, root: Path = Path("/"), allowed: Iterable[int] | None = None) -> Machine:
        """Read the machine. ``root`` is where ``proc`` and ``sys`` lie, ``allowed`` the affinity mask
        (default: this process's)."""
        groups = _CgroupPaths.read(root)
        cpus = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
        cores, cores_reason = _choose_cores(cpus, root, groups.cpu_quota())
        available, available_reason = _host_available(root), "free on this machine"
        limit = groups.memory_available()
        if limit is not None and limit < available:
            available, available_reason = limit, "left of this container's memory limit"
        return cls(tuple(cores), cores_reason, available, available_reason)

    @property
    def core_list(self) -> str:
        """``cores`` in the syntax of ``VLLM_CPU_OMP_THREADS_BIND``: ``0-3,8``."""
        runs: list[list[int]] = []
        for core in self.cores:
            if runs and core == runs[-1][-1] + 1:
                runs[-1].append(core)
            else:
                runs.append([core])
        return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _choose_cores(cpus: list[int], root: Path, quota: float | None) -> tuple[list[int], str]:
    """One logical CPU per physical core (two hyperthreads share the ports that the kernels saturate), all of
    them where that would leave one; not more than the time quota can run, rounded down: one thread too many
    is throttled together with all the others, which wait for it."""
    physical: dict[str, int] = {}
    for cpu in cpus:
        siblings = _text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        physical.setdefault(siblings or str(cpu), cpu)
    cores = sorted(physical.values())
    reason = f"{len(cores)} of {len(cpus)} allowed CPUs, one per physical core"
    if len(cores) == 1:
        cores, reason = cpus, f"all {len(cpus)} allowed CPUs"
    elif len(cores) == len(cpus):
        reason = f"all {len(cpus)} allowed CPUs"
    if quota is not None and quota < len(cores):
        count = max(1, math.floor(quota))
        return cores[:count], f"{count} of {len(cpus)} allowed CPUs, for a CPU quota of {quota:g}"
    return cores, reason


def _host_available(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


@dataclass(frozen=True)
class _CgroupPaths:
    """The folders of this process's cgroups, own first, then every parent up to the mount point."""

    unified: tuple[Path, ...]
    memory: tuple[Path, ...]
    cpu: tuple[Path, ...]

    @classmethod
    def read(cls, root: Path) -> _CgroupPaths:
        base = root / "sys/fs/cgroup"
        paths: dict[str, str] = {}
        for line in _text(root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
        return cls(
            unified=tuple(_upwards(base, paths.get("", "/"))),
            memory=tuple(_upwards(base / "memory", paths.get("memory", "/"))),
            cpu=tuple(_upwards(_first_folder(base / "cpu", base / "cpu,cpuacct"), paths.get("cpu", "/"))),
        )

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time per second, the tightest on the way up; ``None`` where there is no quota."""
        quotas = []
        for folder in self.unified:
            fields = _text(folder / "cpu.max").split()
            if len(fields) == 2 and fields[0] != "max":
                quotas.append(int(fields[0]) / int(fields[1]))
        for folder in self.cpu:
            quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                quotas.append(quota / period)
        return min(quotas, default=None)

    def memory_available(self) -> int | None:
        """Bytes that may still be allocated, the tightest on the way up. Page cache and reclaimable slab
        count as free: the kernel takes them back before it refuses."""
        left = []
        for folder in self.unified:
            limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
            if limit is not None and used is not None:
                left.append(
                    limit - used + _reclaimable(folder, ("inactive_file", "active_file", "slab_reclaimable"))
                )
        for folder in self.memory:
            limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
            # Without a limit version 1 says the largest multiple of a page: more than any machine has.
            if limit is not None and used is not None and limit < 1 << 60:
                left.append(limit - used + _reclaimable(folder, ("total_inactive_file", "total_active_file")))
        return max(0, min(left)) if left else None


def _upwards(base: Path, path: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:length])


def _first_folder(*folders: Path) -> Path:
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def _reclaimable(folder: Path, names: tuple[str, ...]) -> int:
    fields = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return sum(int(field[1]) for field in fields if len(field) == 2 and field[0] in names)


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(file: Path) -> str:
    """The file's text; empty where it does not exist or may not be read."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
