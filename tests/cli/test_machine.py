from __future__ import annotations

from pathlib import Path

import pytest

from vllm_omni.cli.machine import Machine

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 8 logical CPUs without hyperthreads and 64 GiB, no cgroup limits."""
    put(tmp_path, "proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    put(tmp_path, "proc/self/cgroup", "0::/\n")
    siblings(tmp_path, [[cpu] for cpu in range(8)])
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def siblings(root: Path, cores: list[list[int]]) -> None:
    for core in cores:
        for cpu in core:
            folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
            put(root, f"{folder}/thread_siblings_list", ",".join(map(str, core)) + "\n")


def test_this_machine() -> None:
    machine = Machine.read()
    assert machine.cores
    assert machine.available_bytes > 0


@pytest.mark.parametrize(
    ("allowed", "cores", "text"),
    [
        ({0, 1, 2, 3}, (0, 1, 2, 3), "0-3"),
        ({5, 7}, (5, 7), "5,7"),
        ({1, 2, 3, 6}, (1, 2, 3, 6), "1-3,6"),
        ({3}, (3,), "3"),
    ],
)
def test_only_allowed_cpus(root: Path, allowed: set[int], cores: tuple[int, ...], text: str) -> None:
    machine = Machine.read(root, allowed)
    assert machine.cores == cores
    assert machine.core_list == text


@pytest.mark.parametrize(
    ("allowed", "cores"),
    [
        ({0, 1, 2, 3}, (0, 1)),  # two physical cores of two threads each
        ({0, 2}, (0, 2)),  # both threads of one core: better than one
        ({1, 3}, (1, 3)),
        ({0, 3}, (0, 3)),
        ({0}, (0,)),
    ],
)
def test_one_thread_per_physical_core(root: Path, allowed: set[int], cores: tuple[int, ...]) -> None:
    siblings(root, [[0, 2], [1, 3]])
    assert Machine.read(root, allowed).cores == cores


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        ("200000 100000", 2),
        ("765000 100000", 7),
        ("50000 100000", 1),
        ("max 100000", 8),
        ("1600000 100000", 8),
    ],
)
def test_cpu_quota_rounds_down(root: Path, quota: str, count: int) -> None:
    put(root, "sys/fs/cgroup/cpu.max", quota)
    assert len(Machine.read(root, range(8)).cores) == count


def test_a_tighter_parent_wins(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/pod/container\n")
    put(root, "sys/fs/cgroup/pod/cpu.max", "200000 100000")
    put(root, "sys/fs/cgroup/pod/container/cpu.max", "400000 100000")
    put(root, "sys/fs/cgroup/pod/memory.max", str(GIB))
    put(root, "sys/fs/cgroup/pod/memory.current", "0")
    put(root, "sys/fs/cgroup/pod/container/memory.max", str(2 * GIB))
    put(root, "sys/fs/cgroup/pod/container/memory.current", "0")
    machine = Machine.read(root, range(8))
    assert len(machine.cores) == 2
    assert "quota of 2" in machine.cores_reason
    assert machine.available_bytes == GIB


def test_version_one_cgroups(root: Path) -> None:
    put(root, "proc/self/cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "300000")
    put(root, "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000")
    put(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", str(4 * GIB))
    put(root, "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", str(3 * GIB))
    put(root, "sys/fs/cgroup/memory/docker/abc/memory.stat", f"total_inactive_file {GIB}\n")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", str(60 * GIB))
    machine = Machine.read(root, range(8))
    assert len(machine.cores) == 3
    assert machine.available_bytes == 2 * GIB


def test_version_one_without_a_quota(root: Path) -> None:
    put(root, "proc/self/cgroup", "1:cpu:/\n")
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert len(Machine.read(root, range(8)).cores) == 8


def test_page_cache_counts_as_free(root: Path) -> None:
    put(root, "sys/fs/cgroup/memory.max", "2147483648")
    put(root, "sys/fs/cgroup/memory.current", "1900000000")
    put(root, "sys/fs/cgroup/memory.stat", "anon 400000000\ninactive_file 1500000000\n")
    machine = Machine.read(root, range(8))
    assert machine.available_bytes == 2147483648 - 400000000
    assert "container" in machine.available_reason


def test_without_limits_the_host_is_the_bound(root: Path) -> None:
    put(root, "sys/fs/cgroup/memory.max", "max")
    machine = Machine.read(root, range(8))
    assert machine.available_bytes == 32 * GIB
    assert "machine" in machine.available_reason
