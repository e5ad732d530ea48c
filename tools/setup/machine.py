"""What the machine must have before anything is installed, and the line that says how to get it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from failure import SetupError

RUST_OLDEST = (1, 89)
# vLLM's own limit.
PYTHON_TOO_NEW = (3, 15)
# The environment with PyPI's torch takes 6 GB; the wheels pass through uv's cache on the way.
FREE_BYTES = 8_000_000_000


@dataclass(frozen=True)
class Machine:
    """Facts about this machine. `read` collects them; tests write them down."""

    system: str
    architecture: str
    python: tuple[int, int]
    python_is_debian: bool
    has_headers: bool
    has_venv: bool
    rustc: tuple[int, int] | None
    has_cargo: bool
    has_rustup: bool
    has_gxx: bool
    has_libnuma: bool
    free_bytes: int
    is_root: bool

    @classmethod
    def read(cls, root: Path) -> Machine:
        return cls(
            system=platform.system(),
            architecture=platform.machine(),
            python=sys.version_info[:2],
            python_is_debian=sys.base_prefix == "/usr" and shutil.which("apt-get") is not None,
            has_headers=(Path(sysconfig.get_path("include")) / "Python.h").is_file(),
            has_venv=all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip")),
            rustc=rustc_version(),
            has_cargo=shutil.which("cargo") is not None,
            has_rustup=shutil.which("rustup") is not None,
            has_gxx=shutil.which("g++") is not None,
            has_libnuma=is_loadable("libnuma.so.1"),
            free_bytes=shutil.disk_usage(root).free,
            is_root=os.geteuid() == 0,
        )


def rustc_version() -> tuple[int, int] | None:
    """The version of the rustc on PATH; None where there is none or it does not run."""
    try:
        said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.match(r"rustc (\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def is_loadable(soname: str) -> bool:
    """Whether the dynamic linker finds the library, which is what vLLM's extension will ask of it."""
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def require(machine: Machine, root: Path) -> None:
    """Raises SetupError, one line, unless everything is there."""
    if (machine.system, machine.architecture) != ("Linux", "x86_64"):
        raise SetupError(
            f"Linux on x86-64 is needed, this is {machine.system} on {machine.architecture}: "
            "the kernels and vLLM's CPU wheels are built for nothing else"
        )
    dotted = ".".join(map(str, machine.python))
    if machine.python >= PYTHON_TOO_NEW:
        raise SetupError(
            f"Python 3.11 to 3.14 is needed, this is {dotted}: name one with make setup PYTHON=python3.11"
        )
    missing: list[str] = []
    packages: list[str] = []
    remedies: list[str] = []
    if not machine.has_headers:
        missing.append("Python.h")
    if not machine.has_venv:
        missing.append("venv and ensurepip")
    if not (machine.has_headers and machine.has_venv):
        if machine.python_is_debian:
            packages += [f"python{dotted}-dev"] * (not machine.has_headers)
            packages += [f"python{dotted}-venv"] * (not machine.has_venv)
        else:
            remedies.append(f"reinstall {sys.base_prefix} with it, or make setup PYTHON=another-python3")
    if not machine.has_gxx:
        missing.append("g++")
        packages.append("g++")
    if not machine.has_libnuma:
        missing.append("libnuma.so.1")
        packages.append("libnuma1")
    if machine.rustc is None or machine.rustc < RUST_OLDEST or not machine.has_cargo:
        found = "found none"
        if machine.rustc is not None:
            found = "found {}.{}".format(*machine.rustc) + ("" if machine.has_cargo else " without cargo")
        missing.append("Rust {}.{} or newer ({})".format(*RUST_OLDEST, found))
        # Debian's own rustc is older than what is needed here.
        remedies.append(
            "rustup update stable" if machine.has_rustup else "install Rust with rustup (https://rustup.rs)"
        )
    if machine.free_bytes < FREE_BYTES:
        missing.append(
            f"{FREE_BYTES / 1e9:.0f} GB of free disk in {root} (found {machine.free_bytes / 1e9:.1f} GB)"
        )
        remedies.append("free some disk")
    if missing:
        sudo = "" if machine.is_root else "sudo "
        if packages:
            remedies.insert(0, f"{sudo}apt-get install -y {' '.join(packages)}")
        raise SetupError(f"missing: {', '.join(missing)}. To fix it: {'; '.join(remedies)}")
