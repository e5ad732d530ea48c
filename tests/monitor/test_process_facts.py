"""Identity, mappings, limits and memory policy of real processes."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_omni import monitor


def test_a_process_is_identified_by_its_start() -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert monitor.process_start_ticks() == monitor.process_start_ticks(os.getpid()) == int(fields[19])
    child = subprocess.Popen([sys.executable, "-c", ""])
    assert monitor.process_start_ticks(child.pid) >= monitor.process_start_ticks()
    child.wait()
    with pytest.raises(ProcessLookupError):
        monitor.process_start_ticks(child.pid)


def test_mappings_say_what_is_file_and_what_is_anonymous(tmp_path: Path) -> None:
    mib = 1 << 20
    path = tmp_path / "a file (1).bin"
    path.write_bytes(b"x" * 8 * mib)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
        sum(mapped[::4096])
        mapped[: 2 * mib] = b"y" * (2 * mib)
        ledger = monitor.smaps_ledger()
    (mapping,) = [mapping for mapping in ledger if mapping.name == str(path)]
    assert mapping.kind == "file"
    assert mapping.size_bytes == mapping.rss_bytes == 8 * mib
    assert mapping.anon_bytes == 2 * mib
    assert mapping.pss_bytes <= mapping.rss_bytes
    assert [m.rss_bytes for m in ledger] == sorted((m.rss_bytes for m in ledger), reverse=True)
    assert {"file", "heap", "stack", "anon"} <= {mapping.kind for mapping in ledger}


def test_mappings_of_a_process_that_may_not_be_read() -> None:
    code = (
        "import ctypes, sys\n"
        "assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n"
        "print(1, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        probe = (
            "import os, sys\n"
            "from vllm_omni import monitor\n"
            "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "pid = int(sys.argv[1])\n"
            "sampler = monitor.TreeSampler(pid); sampler.start()\n"
            "print(sampler.stop().last_rss_anon_bytes > 0)\n"
            "try: monitor.smaps_ledger(pid)\n"
            "except PermissionError as error: print(error)\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", probe, str(child.pid)], capture_output=True, text=True, check=False
        )
        child.communicate(b"")
    expected = ["True", f"no permission to read smaps of process {child.pid}"]
    assert result.stdout.splitlines() == expected, result.stderr


def test_limits_are_of_this_machine() -> None:
    limits = monitor.cgroup_limits()
    assert limits.version in {None, 1, 2}
    assert limits.cpu_quota_cores is None or limits.cpu_quota_cores > 0
    assert limits.memory_limit_bytes is None or limits.memory_limit_bytes > 1 << 20
    throttled = monitor.cgroup_throttled_ns()
    assert throttled is None or throttled >= 0
    assert (throttled is None) <= (limits.version != 1)


def test_memory_is_bound_for_the_calling_thread() -> None:
    """In a child: a kernel without NUMA, or a sandbox, answers with its own error."""
    code = (
        "from vllm_omni import monitor\n"
        "try:\n"
        "    monitor.bind_memory_to_nodes([0])\n"
        "except OSError as error:\n"
        "    print('refused', error.errno)\n"
        "else:\n"
        "    print(open('/proc/self/numa_maps').readline().split()[1])\n"
        "    monitor.unbind_memory()\n"
        "    print(open('/proc/self/numa_maps').readline().split()[1])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words = result.stdout.split()
    assert words == ["bind:0", "default"] or words in (
        ["refused", str(errno.EPERM)],
        ["refused", str(errno.ENOSYS)],
    ), result.stdout


def test_nodes_that_are_not_there_are_refused() -> None:
    for nodes in ([], [1023], [100_000]):
        with pytest.raises(OSError, match=r"Invalid argument|not permitted|not implemented") as caught:
            monitor.bind_memory_to_nodes(nodes)
        assert caught.value.errno in {errno.EINVAL, errno.EPERM, errno.ENOSYS}
