from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vllm_omni import compile_key


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def cpuinfo(folder: Path, *cores: str) -> Path:
    file = folder / "cpuinfo"
    file.write_text("\n\n".join(f"processor\t: {n}\nflags\t\t: {flags}" for n, flags in enumerate(cores)))
    return file


def test_the_thread_count_is_part_of_it(threads: int) -> None:
    torch.set_num_threads(threads + 1)
    assert compile_key.compiled_for().startswith(f"{threads + 1} threads, ")


def test_the_instruction_sets_are_part_of_it(tmp_path: Path) -> None:
    wide = compile_key.compiled_for(cpuinfo(tmp_path, "fpu avx2 avx512f", "fpu avx2 avx512f"))
    assert compile_key.compiled_for(cpuinfo(tmp_path, "avx512f fpu avx2")) == wide
    assert compile_key.compiled_for(cpuinfo(tmp_path, "fpu avx2")) != wide


def test_without_flags_nothing_is_the_same(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert compile_key.compiled_for(missing) != compile_key.compiled_for(missing)


def test_what_inductor_is_told_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compile_key.compiled_for()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert compile_key.compiled_for() != before


def test_this_package_is_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    files = [tmp_path / "a.py", tmp_path / "inner" / "b.py", tmp_path / "_rust.abi3.so"]
    digests = set()
    for file in files:
        file.write_text("1")
        digests.add(compile_key._package.__wrapped__(tmp_path))
    for file in files:
        file.write_text("2")
        digests.add(compile_key._package.__wrapped__(tmp_path))
    assert len(digests) == 6
    assert compile_key._package() in compile_key.compiled_for()


def test_vllm_keys_compiled_models_by_it(threads: int) -> None:
    from vllm import envs

    compile_key.register()
    factors = envs.compile_factors()
    assert factors[compile_key.FACTOR] == compile_key.compiled_for()
    torch.set_num_threads(threads + 1)
    assert envs.compile_factors() != factors
