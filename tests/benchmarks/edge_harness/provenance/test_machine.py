"""The machine, read from files that a test writes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from benchmarks.edge_harness.provenance.machine import cache_bytes, collect_machine, last_level_cache_bytes

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
model name\t: Example CPU @ 2.0GHz
stepping\t: 2
microcode\t: 0x21000200
flags\t\t: fpu avx2 hypervisor

processor\t: 1
model name\t: Other
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/cpuinfo", CPUINFO)
    system = tmp_path / "sys/devices/system"
    for index, (level, kind, size) in enumerate(
        [
            ("1", "Data", "48K"),
            ("1", "Instruction", "32K"),
            ("2", "Unified", "2048K"),
            ("3", "Unified", "260M"),
        ]
    ):
        folder = system / f"cpu/cpu0/cache/index{index}"
        for name, text in (("level", level), ("type", kind), ("size", size)):
            write(folder / name, text + "\n")
    for cpu in (0, 1):
        write(system / f"cpu/cpu{cpu}/topology/physical_package_id", str(cpu // 1) + "\n")
    write(system / "cpu/smt/active", "1\n")
    write(system / "cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    write(system / "cpu/cpu0/cpufreq/cpuinfo_max_freq", "3800000\n")
    write(system / "node/node1/cpulist", "1\n")
    write(system / "node/node0/cpulist", "0\n")
    write(system / "node/node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 1 kB\n")
    write(tmp_path / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write(tmp_path / "sys/class/dmi/id/sys_vendor", "QEMU\n")
    return tmp_path


def test_everything_the_files_say(root: Path) -> None:
    machine = collect_machine(root)
    assert machine.cpu_model == "Example CPU @ 2.0GHz"
    assert machine.cpu_family_model_stepping == ["6", "207", "2"]
    assert machine.microcode == "0x21000200"
    assert machine.cpu_flags == ["fpu", "avx2", "hypervisor"]
    assert machine.sockets == 2
    assert machine.smt_active is True
    assert [(node.node, node.cpus, node.memory_bytes) for node in machine.numa_nodes] == [
        (0, "0", 1 << 20),
        (1, "1", None),
    ]
    assert machine.cache_bytes == {"L1d": 48 << 10, "L1i": 32 << 10, "L2": 2 << 20, "L3": 260 << 20}
    assert machine.governor == "performance"
    assert machine.max_khz == 3_800_000
    assert machine.transparent_hugepages == "madvise"
    assert machine.hypervisor == "QEMU"


def test_what_is_not_told_is_none(tmp_path: Path) -> None:
    machine = collect_machine(tmp_path)
    assert machine.cpu_model is None
    assert machine.microcode is None
    assert machine.smt_active is None
    assert machine.governor is None
    assert machine.numa_nodes == []
    assert machine.cache_bytes == {}


def test_this_machine() -> None:
    machine = collect_machine()
    assert machine.cpu_flags
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert machine.cgroup.version in (None, 1, 2)
    assert last_level_cache_bytes() == max(cache_bytes().values(), default=None)
