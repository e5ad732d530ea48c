"""What is in the environment before vLLM is imported into a measuring process."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from vllm_omni.cli import in_process
from vllm_omni.cli.in_process import BIND, IN_PROCESS, prepare, worker_variables
from vllm_omni.errors import OmniError
from vllm_omni.settings import PREFIX

DISABLE = PREFIX + "DISABLE"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test sets is gone after it."""
    for name in (IN_PROCESS, DISABLE, "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "0")


def test_one_process_with_our_plugin() -> None:
    prepare()
    assert os.environ[IN_PROCESS] == "0"
    assert os.environ[DISABLE] == "0"
    assert os.environ["VLLM_CACHE_ROOT"] == "0"


def test_stock_vllm_in_its_own_layout(tmp_path: Path) -> None:
    prepare(in_process=False, stock=True, cache_root=tmp_path)
    assert os.environ[IN_PROCESS] == "1"
    assert os.environ[DISABLE] == "1"
    assert os.environ["VLLM_CACHE_ROOT"] == str(tmp_path)
    # Kernels that are compiled outside vLLM's folder stay within the run's as well.
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))


def test_a_plugin_that_is_off_is_not_measured_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE, "1")
    with pytest.raises(OmniError, match="DISABLE=1: expected 0, or --stock"):
        prepare()
    prepare(stock=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages as installed on Linux, with nothing to preload."""
    for name in ("torch/lib", "vllm/libs"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(in_process, "_package", lambda name: tmp_path / name)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return tmp_path


def test_threads_are_bound_as_the_runtime_that_is_preloaded_wants_it(site: Path) -> None:
    assert worker_variables([2, 5], {}) == {
        "OMP_NUM_THREADS": "2",
        "OMP_PLACES": "{2,5}",
        "OMP_PROC_BIND": "true",
    }
    gomp = site / "torch/lib/libgomp.so.1"
    gomp.touch()
    assert worker_variables([2, 5], {}) == {
        "LD_PRELOAD": str(gomp),
        "OMP_NUM_THREADS": "2",
        "GOMP_CPU_AFFINITY": "2 5",
    }
    # Another runtime that the user preloads stays the only one.
    assert worker_variables([2, 5], {"LD_PRELOAD": "/x/libiomp5.so"}) == {
        "LD_PRELOAD": "/x/libiomp5.so",
        "OMP_NUM_THREADS": "2",
        "KMP_AFFINITY": "granularity=fine,explicit,proclist=[2,5]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }


def test_the_allocator_of_the_wheel_comes_first_and_what_the_user_preloads_stays(site: Path) -> None:
    gomp, tcmalloc = site / "torch/lib/libgomp.so.1", site / "vllm/libs/libtcmalloc_minimal.so.4"
    gomp.touch()
    tcmalloc.touch()
    found = worker_variables([0], {"LD_PRELOAD": "/x/other.so", BIND: "nobind"})
    assert found == {"LD_PRELOAD": f"{tcmalloc}:/x/other.so:{gomp}"}


def test_a_process_begins_anew_only_where_that_changes_something(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "a.program", "--model", "x"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    in_process.restart(["--more"], {"OMP_NUM_THREADS": "3"})
    assert started == []
    in_process.restart(["--more"], {"OMP_NUM_THREADS": "4"})
    ((path, command, environment),) = started
    assert path == sys.executable
    assert command == [sys.executable, "-m", "a.program", "--model", "x", "--more"]
    assert environment["OMP_NUM_THREADS"] == "4"


def test_the_variables_are_those_that_vllm_gives_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own code is the reference, for each runtime that may be preloaded."""
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    for preload in ("/x/libgomp.so.1", "/x/libiomp5.so", ""):
        monkeypatch.setattr(in_process, "_package", lambda name: None)
        manager = object.__new__(OMPProcessManager)
        manager.skip_setup = False
        manager.cpu_lists = [[4, 6]]
        manager.use_gomp, manager.use_iomp = "gomp" in preload, "iomp" in preload
        ours = worker_variables([4, 6], {"LD_PRELOAD": preload})
        ours.pop("LD_PRELOAD", None)
        for name in ours:
            monkeypatch.delenv(name, raising=False)
        before = dict(os.environ)
        with manager.configure_omp_envs(0, 0):
            given = {name: value for name, value in os.environ.items() if before.get(name) != value}
        assert given == ours
