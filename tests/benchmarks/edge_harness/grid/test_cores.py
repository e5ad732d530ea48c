"""Core lists, and machines that exist only as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.edge_harness.grid.cores import core_list, parse_cores, place
from vllm_omni.errors import OmniError


@pytest.mark.parametrize(
    ("text", "cores", "shortest"),
    [
        ("0", (0,), "0"),
        ("0,2-5", (0, 2, 3, 4, 5), "0,2-5"),
        (" 3 , 1-2 ,2", (1, 2, 3), "1-3"),
        ("7-7", (7,), "7"),
        ("56-79", tuple(range(56, 80)), "56-79"),
    ],
)
def test_lists_are_read_and_written(text: str, cores: tuple[int, ...], shortest: str) -> None:
    assert parse_cores(text) == cores
    assert core_list(cores) == shortest


@pytest.mark.parametrize("text", ["", ",", "0,", "x", "1-", "-1", "5-2", "1-2-3", "0x1", "1.5", "0-99999999"])
def test_other_texts_are_one_line(text: str) -> None:
    with pytest.raises(
        OmniError, match=r"^--cores .*expected (cores like 0,2-5|a range from low to high)"
    ) as e:
        parse_cores(text)
    assert "\n" not in str(e.value)


def machine(root: Path, online: str, nodes: dict[int, str], memory: str, siblings: dict[int, str]) -> Path:
    files = {"devices/system/cpu/online": online, "devices/system/node/has_memory": memory}
    files |= {f"devices/system/node/node{node}/cpulist": cpus for node, cpus in nodes.items()}
    files |= {f"devices/system/cpu/cpu{c}/topology/thread_siblings_list": s for c, s in siblings.items()}
    for name, text in files.items():
        path = root / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    siblings = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}
    return machine(tmp_path, "0-7", {0: "0-1,4-5", 1: "2-3,6-7"}, "0-1", siblings)


def test_memory_comes_from_the_cores_node(two_sockets: Path) -> None:
    placed = place("2-3", root=two_sockets, allowed=range(8))
    assert (placed.cores, placed.memory_nodes, placed.bind_memory) == ((2, 3), (1,), True)
    assert placed.note is None


def test_cores_of_every_node_need_no_binding(two_sockets: Path) -> None:
    placed = place("0-3", root=two_sockets, allowed=range(8))
    assert (placed.memory_nodes, placed.bind_memory) == ((0, 1), False)


def test_a_machine_with_one_node_needs_no_binding(tmp_path: Path) -> None:
    placed = place("0", root=machine(tmp_path, "0-1", {0: "0-1"}, "0", {}), allowed=range(2))
    assert (placed.memory_nodes, placed.bind_memory) == ((0,), False)


def test_a_kernel_without_nodes(tmp_path: Path) -> None:
    placed = place("1", root=tmp_path, allowed=range(2))
    assert (placed.cores, placed.memory_nodes, placed.bind_memory) == ((1,), None, False)


def test_hyperthreads_of_one_core_are_said(two_sockets: Path) -> None:
    assert place("0,2,4", root=two_sockets, allowed=range(8)).note == "hyperthreads of one core: 0+4"


def test_the_default_is_one_thread_per_physical_core(two_sockets: Path) -> None:
    placed = place(None, root=two_sockets, allowed=[1, 2, 5, 6])
    assert placed.cores == (1, 2)
    assert placed.note == "default: 2 of 4 allowed CPUs, one per physical core"


def test_cores_that_are_offline_or_not_there(two_sockets: Path) -> None:
    with pytest.raises(OmniError) as error:
        place("6-9,56-79", root=two_sockets, allowed=range(8))
    assert str(error.value) == (
        "--cores 6-9,56-79: expected cores that are online here (0-7); 8-9,56-79 are not"
    )


def test_cores_outside_the_affinity_mask(two_sockets: Path) -> None:
    with pytest.raises(OmniError) as error:
        place("1-2", root=two_sockets, allowed=[0, 1])
    assert str(error.value) == (
        "--cores 1-2: expected cores inside this process's affinity mask (0-1); 2 is not"
    )
