"""A compile cache for each arm: empty at first, warm once a run has ended well."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.edge_harness.grid.caches import CompileCaches


def test_every_arm_has_its_own_folders(tmp_path: Path) -> None:
    caches = CompileCaches(tmp_path / "caches")
    a, b = caches.prepare("a")[0], caches.prepare("b")[0]
    assert a.keys() == {"VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    assert len({*a.values(), *b.values()}) == 6
    assert all(Path(folder).is_dir() and not any(Path(folder).iterdir()) for folder in a.values())
    assert caches.prepare("a")[0] == a


def test_a_cache_is_cold_until_a_run_has_ended_well(tmp_path: Path) -> None:
    caches = CompileCaches(tmp_path)
    assert caches.prepare("a")[1]
    assert caches.prepare("a")[1]
    caches.filled("a")
    assert not caches.prepare("a")[1]
    assert caches.prepare("b")[1]


def test_a_cold_cache_is_empty_and_a_warm_one_is_kept(tmp_path: Path) -> None:
    """A crashed run, or a grid that was given up, may have left half of one."""
    for caches, expected in ((CompileCaches(tmp_path), False), (CompileCaches(tmp_path, ["a"]), True)):
        folder = Path(caches.prepare("a")[0]["VLLM_CACHE_ROOT"])
        (folder / "graph").touch()
        caches.prepare("a")
        assert (folder / "graph").exists() is expected


def test_a_cache_that_was_deleted_is_cold(tmp_path: Path) -> None:
    caches = CompileCaches(tmp_path, ["a"])
    caches.prepare("a")
    assert not caches.prepare("a")[1]
    shutil.rmtree(tmp_path / "a")
    assert caches.prepare("a")[1]


def test_a_program_that_compiles_nothing_leaves_no_files(tmp_path: Path) -> None:
    caches = CompileCaches(tmp_path)
    folder = Path(caches.prepare("a")[0]["TORCHINDUCTOR_CACHE_DIR"])
    assert not caches.holds_files("a")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "k.so").touch()
    assert caches.holds_files("a")
    assert not caches.holds_files("b")
