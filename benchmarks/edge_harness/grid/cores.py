"""Which cores the runs get, and the memory node that belongs to them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from vllm_omni.cli.machine import Machine
from vllm_omni.errors import OmniError


@dataclass(frozen=True)
class Placement:
    """``memory_nodes``: the NUMA nodes of the cores, ``None`` where the kernel names none. ``bind_memory``:
    they are not all nodes that have memory, so that it matters where memory comes from."""

    cores: tuple[int, ...]
    memory_nodes: tuple[int, ...] | None
    bind_memory: bool
    note: str | None


def parse_cores(text: str, where: str = "--cores") -> tuple[int, ...]:
    """``0,2-5`` as sorted core numbers. Raises :class:`OmniError` with what is wrong in one line."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)):
            raise OmniError(f"{where} {text}: expected cores like 0,2-5; found {part.strip() or 'nothing'!r}")
        low, high = int(first), int(last or first)
        if high < low or high - low > 1 << 16:
            raise OmniError(f"{where} {text}: expected a range from low to high; found {part.strip()!r}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def core_list(cores: Iterable[int]) -> str:
    """The shortest text that :func:`parse_cores` reads as ``cores``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def place(text: str | None, *, root: Path = Path("/"), allowed: Collection[int] | None = None) -> Placement:
    """Where runs go for ``--cores text``; without it one thread per physical core that this process may use.

    Raises :class:`OmniError` when a core is offline or outside the affinity mask.
    """
    mask = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    if text is None:
        machine = Machine.read(root, mask)
        cores, note = machine.cores, f"default: {machine.cores_reason}"
    else:
        cores, note = parse_cores(text), None
        _check(cores, text, mask, _ids(root / "sys/devices/system/cpu/online"))
    nodes = _nodes_of(cores, root)
    with_memory = _ids(root / "sys/devices/system/node/has_memory")
    shared = _shared_physical_cores(cores, root)
    notes = [note, f"hyperthreads of one core: {shared}" if shared else None]
    return Placement(
        cores,
        nodes,
        bind_memory=nodes is not None and bool(with_memory) and set(nodes) < set(with_memory),
        note="; ".join(part for part in notes if part) or None,
    )


def _check(cores: tuple[int, ...], text: str, mask: frozenset[int], online: tuple[int, ...]) -> None:
    offline = [core for core in cores if online and core not in online]
    if offline:
        raise OmniError(
            f"--cores {text}: expected cores that are online here ({core_list(online)}); "
            f"{core_list(offline)} {_are(offline)} not"
        )
    outside = [core for core in cores if core not in mask]
    if outside:
        raise OmniError(
            f"--cores {text}: expected cores inside this process's affinity mask ({core_list(mask)}); "
            f"{core_list(outside)} {_are(outside)} not"
        )


def _are(cores: list[int]) -> str:
    return "is" if len(cores) == 1 else "are"


def _nodes_of(cores: tuple[int, ...], root: Path) -> tuple[int, ...] | None:
    nodes = {
        int(folder.name.removeprefix("node")): set(_ids(folder / "cpulist"))
        for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
    }
    return tuple(sorted(node for node, ids in nodes.items() if ids & set(cores))) or None


def _shared_physical_cores(cores: tuple[int, ...], root: Path) -> str:
    """Groups of the given cores that are hyperthreads of one physical core, ``0+4, 1+5``."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for core in cores:
        siblings = _ids(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        groups.setdefault(siblings or (core,), []).append(core)
    return ", ".join("+".join(map(str, group)) for group in groups.values() if len(group) > 1)


def _ids(file: Path) -> tuple[int, ...]:
    """The kernel's list in ``file``; empty where there is none."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return ()
    return parse_cores(text, str(file)) if text else ()
