"""The machine: processor, topology, memory, limits around this process. What it does not tell is None."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

from benchmarks.edge_harness.artifact.schema import Cgroup, Machine, NumaNode
from vllm_omni import monitor

_CACHE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def collect_machine(root: Path = Path("/")) -> Machine:
    """Read the machine whose ``proc`` and ``sys`` lie below ``root``."""
    cpu = _first_processor(root)
    system = root / "sys/devices/system"
    limits = monitor.cgroup_limits()
    packages = {
        text for path in system.glob("cpu/cpu*/topology/physical_package_id") if (text := read_text(path))
    }
    smt = read_text(system / "cpu/smt/active")
    khz = read_text(system / "cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return Machine(
        cpu_model=cpu.get("model name"),
        cpu_family_model_stepping=[cpu.get(key) for key in ("cpu family", "model", "stepping")],
        microcode=cpu.get("microcode"),
        cpu_flags=cpu.get("flags", "").split(),
        sockets=len(packages) or None,
        physical_cores=psutil.cpu_count(logical=False),
        logical_cpus=psutil.cpu_count() or 1,
        smt_active=None if smt is None else smt == "1",
        numa_nodes=_numa_nodes(system / "node"),
        cache_bytes=cache_bytes(root),
        governor=read_text(system / "cpu/cpu0/cpufreq/scaling_governor"),
        max_khz=int(khz) if khz and khz.isdigit() else None,
        transparent_hugepages=_chosen(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        kernel=platform.release(),
        hypervisor=_hypervisor(root, cpu),
        memory_bytes=psutil.virtual_memory().total,
        swap_bytes=psutil.swap_memory().total,
        cgroup=Cgroup(
            version=limits.version,
            cpu_quota_cores=limits.cpu_quota_cores,
            memory_limit_bytes=limits.memory_limit_bytes,
            cpuset=limits.cpuset,
        ),
    )


def cache_bytes(root: Path = Path("/")) -> dict[str, int]:
    """Size of each cache that CPU 0 sees: ``L1d``, ``L1i``, ``L2``, ``L3``."""
    sizes = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (read_text(folder / name) for name in ("level", "type", "size"))
        if level and kind and size:
            suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
            sizes[f"L{level}{suffix}"] = _bytes(size)
    return sizes


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache that CPU 0 sees."""
    return max(cache_bytes().values(), default=None)


def read_text(path: Path) -> str | None:
    """The file's text without the newline, or None where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _bytes(size: str) -> int:
    return int(size[:-1]) * _CACHE_UNITS[size[-1]] if size[-1] in _CACHE_UNITS else int(size)


def _chosen(text: str | None) -> str | None:
    """``always [madvise] never`` → ``madvise``."""
    if text is None or "[" not in text:
        return text
    return text.partition("[")[2].partition("]")[0]


def _first_processor(root: Path) -> dict[str, str]:
    first, _, _ = (read_text(root / "proc/cpuinfo") or "").partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _hypervisor(root: Path, cpu: dict[str, str]) -> str | None:
    if "hypervisor" not in cpu.get("flags", "").split():
        return None
    return (
        read_text(root / "sys/class/dmi/id/sys_vendor")
        or read_text(root / "sys/hypervisor/type")
        or "unnamed"
    )


def _numa_nodes(folder: Path) -> list[NumaNode]:
    nodes = []
    for path in folder.glob("node[0-9]*"):
        total = None
        for line in (read_text(path / "meminfo") or "").splitlines():
            if "MemTotal:" in line:
                total = int(line.split()[-2]) * 1024
        cpus = read_text(path / "cpulist") or ""
        nodes.append(NumaNode(node=int(path.name.removeprefix("node")), cpus=cpus, memory_bytes=total))
    return sorted(nodes, key=lambda node: node.node)
