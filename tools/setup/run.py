"""The stages of a set-up: machine, environment, packages, extension. A finished stage is not repeated."""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import machine
import packages
from failure import SetupError
from stamps import Stamp, lock_digest, packages_digest, sources_digest

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/setup", description="Makes .venv and builds the extension.")
    parser.add_argument("--torch-backend", default="auto", help="auto, cpu or pypi")
    arguments = parser.parse_args(argv)
    try:
        setup(ROOT, arguments.torch_backend)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: make setup goes on from here", file=sys.stderr)
        return 130
    return 0


def setup(root: Path, torch_backend: str) -> None:
    """Brings .venv to what the tree asks for. Raises SetupError with one line for the user."""
    venv = root / ".venv"
    if torch_backend not in packages.TORCH_BACKENDS:
        packages.choose_torch(torch_backend, {}, lambda: False)
    present = packages.installed(venv)
    vllm = packages.vllm_requirement(present)
    if is_complete(root, torch_backend, present):
        dist, _, version = vllm.partition("==")
        held = f"{dist} {version}, torch {present['torch']}"
        print(f"setup: .venv is complete ({held}), nothing to install or build")
        return
    machine.require(machine.Machine.read(root), root)
    (venv / ".setup").mkdir(parents=True, exist_ok=True)
    with open(venv / ".setup/lock", "w") as lock:
        hold(lock)
        started = time.monotonic()
        make_environment(root)
        install_packages(root, torch_backend)
        build_extension(root)
        print(f"setup: done in {time.monotonic() - started:.0f} s. Next: make demo, make test, make help")


def is_complete(root: Path, torch_backend: str, present: dict[str, str]) -> bool:
    venv = root / ".venv"
    if not (venv / "bin/python").exists() or "torch" not in present:
        return False
    build = packages.build_of(present["torch"])
    return (
        torch_backend in ("auto", build)
        and Stamp(venv, "packages").holds(packages_stamp(root, build))
        and Stamp(venv, "extension").holds(extension_stamp(sources_digest(root), root))
        and has_extension(root)
    )


def packages_stamp(root: Path, build: str) -> str:
    return f"{packages_digest(root)} {build}"


def extension_stamp(sources: str, root: Path) -> str:
    return f"{sources} {lock_digest(root)}"


def has_extension(root: Path) -> bool:
    return any((root / "vllm_omni").glob("_rust*.so"))


def hold(lock: IO[str]) -> None:
    """Waits until no other set-up works on this .venv; the lock goes with the process, however it ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("setup: another set-up is at work on .venv, waiting for it", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def call(stage: str, command: Sequence[str], root: Path) -> None:
    """Runs one command with its own output and progress shown."""
    bin_folder = root / ".venv/bin"
    environment = {
        **os.environ,
        "VIRTUAL_ENV": str(root / ".venv"),
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # The same value in every build keeps cargo from rebuilding the binding between them.
        "PYO3_PYTHON": str(bin_folder / "python"),
    }
    print(f"setup: {stage}", flush=True)
    code = subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL).returncode
    if code != 0:
        raise SetupError(
            f"{stage} failed with exit code {code}, see above; once that is mended, make setup goes on"
        )


def make_environment(root: Path) -> None:
    """A .venv whose Python and uv run. A half made one is completed, one that lost its Python made anew."""
    venv = root / ".venv"
    python = venv / "bin/python"
    if not runs([str(python), "-m", "pip", "--version"]):
        # Of an environment's Python, its base: an activated .venv must not be made from itself.
        base = getattr(sys, "_base_executable", None) or sys.executable
        flags = ["--clear"] if python.is_symlink() and not python.exists() else []
        call("making .venv", [base, "-m", "venv", *flags, str(venv)], root)
        (venv / ".setup").mkdir(exist_ok=True)
    pin = packages.pin_of("uv", root / "tools/setup/constraints.txt")
    has_pin = packages.installed(venv).get("uv") == pin.partition("==")[2]
    if not has_pin or not runs([str(venv / "bin/uv"), "--version"]):
        call(f"installing {pin}", [str(python), "-m", "pip", "install", "--quiet", pin], root)


def runs(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def install_packages(root: Path, torch_backend: str) -> None:
    venv = root / ".venv"
    present = packages.installed(venv)
    uv = [str(venv / "bin/uv")]
    stamp = Stamp(venv, "packages")
    choice = packages.choose_torch(torch_backend, present, lambda: packages.cpu_index_answers(uv, root))
    wanted = packages_stamp(root, choice.build)
    if stamp.holds(wanted) and "torch" in present:
        return
    if choice.line:
        print(f"setup: {choice.line}", flush=True)
    stamp.clear()
    for command in packages.install_commands(uv, root, choice, present, packages.vllm_requirement(present)):
        call(f"installing {command[-1]}" if "--no-deps" in command else "installing packages", command, root)
    stamp.write(wanted)


def build_extension(root: Path) -> None:
    venv = root / ".venv"
    stamp = Stamp(venv, "extension")
    if stamp.holds(extension_stamp(sources_digest(root), root)) and has_extension(root):
        return
    stamp.clear()
    # Taken before the build: sources saved while it runs count as changed.
    sources = sources_digest(root)
    call("building the extension", [str(venv / "bin/maturin"), "develop", "--release", "--uv"], root)
    stamp.write(extension_stamp(sources, root))
