"""`.ci/run`: what it installs, what it calls, and that a failure stays one. What it calls is stood in for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Bare:
    """A machine on which the named packages are installed, and where `make` ends with `make_code`."""

    def __init__(
        self, folder: Path, installed: set[str], make_code: int = 0, base_prefix: str = "/opt/python"
    ) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "calls.log"
        self.script = folder / "checkout/.ci/run"
        self.script.parent.mkdir(parents=True)
        shutil.copy(ROOT / ".ci/run", self.script)
        for name in ("bash", "dirname"):
            (self.bin / name).symlink_to(shutil.which(name) or "")
        self.stand_in("python3", f"echo {base_prefix}")
        self.stand_in("id", "echo 0")
        known = "|".join(sorted(installed)) or "none"
        self.stand_in("dpkg-query", f'case "${{@: -1}}" in {known}) printf installed ;; *) exit 1 ;; esac')
        self.stand_in("apt-get", f'echo "apt-get $* [$DEBIAN_FRONTEND]" >> {self.log}')
        self.stand_in(
            "make",
            f'echo "make $* [$PWD] [$CI] [$TORCH_BACKEND]" >> {self.log}; echo "3 passed"; exit {make_code}',
        )

    def stand_in(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.bin / name).chmod(0o755)

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", str(self.script)],
            cwd="/",
            env={"PATH": str(self.bin)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


EVERYTHING = {"chromium", "curl", "git", "libnuma1", "qemu-user"}


def test_make_test_is_all_that_it_runs_where_nothing_is_missing(tmp_path: Path):
    bare = Bare(tmp_path, EVERYTHING)
    run = bare.run()
    assert run.returncode == 0, run.stderr
    assert bare.calls() == [f"make test [{tmp_path / 'checkout'}] [true] [pypi]"]
    assert run.stdout.endswith("3 passed\n")


@pytest.mark.parametrize("code", [1, 2, 5, 77])
def test_the_exit_code_of_the_tests_is_its_own(tmp_path: Path, code: int):
    run = Bare(tmp_path, EVERYTHING, make_code=code).run()
    assert run.returncode == code
    assert run.stdout.endswith("3 passed\n")


def test_what_is_missing_is_installed_without_a_question(tmp_path: Path):
    bare = Bare(tmp_path, EVERYTHING - {"libnuma1", "qemu-user"})
    assert bare.run().returncode == 0
    assert bare.calls()[:2] == [
        "apt-get -qq update [noninteractive]",
        "apt-get -qq install -y --no-install-recommends libnuma1 qemu-user [noninteractive]",
    ]
    assert bare.calls()[2].startswith("make test ")


def test_debians_python_gets_its_headers_and_venv(tmp_path: Path):
    bare = Bare(tmp_path, EVERYTHING, base_prefix="/usr")
    assert bare.run().returncode == 0
    assert (
        "apt-get -qq install -y --no-install-recommends python3-dev python3-venv [noninteractive]"
        in bare.calls()
    )


def test_a_failed_installation_ends_the_run(tmp_path: Path):
    bare = Bare(tmp_path, set())
    bare.stand_in("apt-get", "exit 100")
    assert bare.run().returncode == 100
    assert not bare.log.exists()


def test_it_is_executable():
    assert os.access(ROOT / ".ci/run", os.X_OK)
