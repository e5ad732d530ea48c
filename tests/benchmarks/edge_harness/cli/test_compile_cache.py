"""Cold or warm, by what a program leaves."""

from __future__ import annotations

from pathlib import Path

from benchmarks.edge_harness.cli.compile_cache import CompileCache, default_root


def test_only_compiled_kernels_count(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path)
    assert not cache.has_grown()
    (tmp_path / "modelinfos").mkdir()
    (tmp_path / "modelinfos" / "a.json").touch()
    assert not cache.has_grown()
    (tmp_path / "torch_compile_cache" / "graph").mkdir(parents=True)
    assert not cache.has_grown()
    (tmp_path / "torch_compile_cache" / "graph" / "model").touch()
    # Of every start, a warm one too.
    assert not cache.has_grown()
    (tmp_path / "torch_compile_cache" / "graph" / "a.so").touch()
    assert cache.has_grown()
    # The next program finds it.
    assert not cache.has_grown()
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor" / "kernel.so").touch()
    assert cache.has_grown()


def test_the_folder_is_vllms() -> None:
    assert default_root({"VLLM_CACHE_ROOT": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert default_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/vllm")
    assert default_root({}) == Path.home() / ".cache" / "vllm"
