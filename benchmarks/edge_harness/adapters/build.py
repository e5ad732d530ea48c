"""Building a peer: the plan of a recipe, and what runs it.

The plan is data, so that a test reads it; :class:`Runner` does it. A step whose result exists is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from benchmarks.edge_harness.adapters.recipes import BUILD_TOOLS, Recipe, Step
from vllm_omni.errors import OmniError

# "[17/203] Building …", as ninja and as cmake's own generator of makefiles never write otherwise.
_NINJA_COUNT = re.compile(r"^\[(\d+)/(\d+)\]")
_KIB = 1024

Progress = Callable[[int, int], None]


class Runner(Protocol):
    """Runs one command of a plan, its output appended to ``log``; ``progress`` gets steps done and all."""

    def __call__(self, argv: Sequence[str], log: Path, progress: Progress) -> int: ...


def plan(recipe: Recipe, uv: str) -> list[Step]:
    """The steps that make ``recipe.folder`` complete, but for the mark."""
    return _cmake_plan(recipe, uv) if recipe.kind == "cmake" else _environment_plan(recipe, uv)


def _cmake_plan(recipe: Recipe, uv: str) -> list[Step]:
    folder, source = recipe.folder, recipe.source
    requirement = folder / "requirement.txt"
    pinned = f"{recipe.distribution}=={recipe.version} --hash=sha256:{recipe.sha256}\n"
    binaries = recipe.python.parent
    archive = folder / "download" / f"{recipe.distribution.replace('-', '_')}-{recipe.version}.tar.gz"
    jobs = str(len(os.sched_getaffinity(0)))
    return [
        *_environment(uv, "build tools", recipe.python, BUILD_TOOLS, recipe.python.parent / "ninja"),
        Step("requirement", call=lambda: _write(requirement, pinned), creates=requirement),
        Step(
            "download the source",
            # pip compares the digest before it runs anything of the archive; the last option applies to
            # this archive alone, what its metadata needs comes built.
            (
                *(str(recipe.python), "-m", "pip", "download", "--no-deps", "--require-hashes"),
                *("--no-binary", recipe.distribution, "--dest", str(archive.parent), "-r", str(requirement)),
            ),
            creates=archive,
        ),
        Step("unpack", call=lambda: unpack(archive, recipe.sha256, source), creates=source),
        *(_lacking_file(source / recipe.tree / path, text) for path, text in recipe.lacking),
        Step(
            "configure",
            (
                *(str(binaries / "cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={binaries / 'ninja'}"),
                *("-S", str(source / recipe.tree), "-B", str(folder / "build"), *recipe.flags),
            ),
            creates=folder / "build" / "build.ninja",
        ),
        # Nothing marks its end: ninja itself knows what is left to do.
        Step(
            "compile",
            (
                *(str(binaries / "cmake"), "--build", str(folder / "build"), "--parallel", jobs),
                *("--target", *recipe.targets),
            ),
        ),
    ]


def _environment_plan(recipe: Recipe, uv: str) -> list[Step]:
    mark = recipe.folder / "env" / ".installed"
    return [
        *_override_file(recipe),
        *_environment(uv, "engine", recipe.python, recipe.packages, mark, recipe.override_file),
        *_removal(uv, recipe, recipe.python, mark),
        Step("installed", call=mark.touch, creates=mark),
    ]


def converter_plan(recipe: Recipe, uv: str) -> list[Step]:
    """The environment of the engine's model converter, which needs other packages than the engine."""
    mark = recipe.folder / "converter" / ".installed"
    return [
        *_environment(uv, "converter", recipe.converter_python, recipe.converter_packages, mark),
        *_removal(uv, recipe, recipe.converter_python, mark),
        Step("installed", call=mark.touch, creates=mark),
    ]


def _override_file(recipe: Recipe) -> list[Step]:
    path = recipe.override_file
    if path is None:
        return []
    text = "".join(f"{line}\n" for line in recipe.overrides)
    return [Step("overrides", call=lambda: _write(path, text), creates=path)]


def _environment(
    uv: str,
    what: str,
    python: Path,
    packages: tuple[str, ...],
    done: Path,
    override_file: Path | None = None,
) -> list[Step]:
    folder = python.parents[1]
    # Not the harness's own environment: a peer's versions must not touch what it is compared with.
    make = (uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
    overriding = () if override_file is None else ("--override", str(override_file))
    install = (uv, "pip", "install", "--quiet", "--python", str(python), *overriding, *packages)
    return [
        Step(f"environment of the {what}", make, creates=python),
        Step(f"packages of the {what}", install, creates=done),
    ]


def _removal(uv: str, recipe: Recipe, python: Path, done: Path) -> list[Step]:
    if not recipe.removed_packages:
        return []
    argv = (uv, "pip", "uninstall", "--quiet", "--python", str(python), *recipe.removed_packages)
    return [Step("removal of what reports home", argv, creates=done)]


def _lacking_file(path: Path, text: str) -> Step:
    return Step(f"write {path.name}", call=lambda: _write(path, text), creates=path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def unpack(archive: Path, sha256: str, target: Path) -> None:
    """Unpack the one folder inside ``archive`` as ``target``, whole or not at all."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise OmniError(f"{archive.name}: expected sha256 {sha256}, found {found}")
    staging = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(staging, filter="data")
    (top,) = staging.iterdir()
    top.rename(target)
    staging.rmdir()


def find_uv() -> str:
    """The uv of this environment, or of the path."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise OmniError("uv: expected beside this Python or on the path, found none: run `make setup`")
    return found


def run_command(argv: Sequence[str], log: Path, progress: Progress) -> int:
    """Run ``argv``. A build yields to whatever else runs on the machine (nice 19)."""
    # By lines, so that the log can be followed.
    with log.open("a", buffering=1) as file:
        file.write(f"$ {' '.join(argv)}\n")
        child = subprocess.Popen(
            ["nice", "-n", "19", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                file.write(line)
                if match := _NINJA_COUNT.match(line):
                    progress(int(match[1]), int(match[2]))
        except BaseException:
            child.terminate()
            child.wait()
            raise
        return child.wait()


def check_processor(recipe: Recipe, cpuinfo: str | None = None) -> str | None:
    """Why ``recipe`` cannot run on this processor, or ``None``."""
    if recipe.cpu_vendor is None:
        return None
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    match = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    vendor = match[1] if match else "unknown"
    if vendor == recipe.cpu_vendor:
        return None
    return (
        f"{recipe.name} supports {recipe.cpu_vendor} processors only and this one is {vendor}: "
        "run this arm on such a machine"
    )


def build(
    recipe: Recipe,
    steps: Sequence[Step],
    *,
    runner: Runner = run_command,
    on_step: Callable[[str], None] = lambda title: None,
    progress: Progress = lambda done, total: None,
) -> None:
    """Do ``steps``. Raises :class:`OmniError` naming the step, the reason and the log."""
    recipe.folder.mkdir(parents=True, exist_ok=True)
    log = recipe.folder / "build.log"
    for step in steps:
        if step.creates is not None and step.creates.exists():
            continue
        on_step(step.title)
        if step.call is not None:
            step.call()
            continue
        code = runner(step.argv, log, progress)
        if code:
            raise OmniError(
                f"{recipe.name}: {step.title} failed (exit {code}): {last_words(log)}; whole output: {log}"
            )
        if step.creates is not None and step.title.startswith("download") and not step.creates.exists():
            raise OmniError(f"{recipe.name}: {step.title}: expected {step.creates.name}, found none")


def last_words(log: Path) -> str:
    """The line of a failed step's output that says most: the last with ``error`` in it, else the last."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 64 * _KIB))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    this_step = lines[max((i for i, line in enumerate(lines) if line.startswith("$ ")), default=-1) + 1 :]
    errors = [line for line in this_step if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or this_step or ["no output"])[-1][:300]


def finish(recipe: Recipe, versions: dict[str, str]) -> dict[str, Any]:
    """Write the mark that makes the folder a peer; what it says."""
    record = {
        "name": recipe.name,
        "version": recipe.version,
        "commit": recipe.commit,
        "sha256": recipe.sha256 or None,
        "build_flags": list(recipe.flags),
        "packages": versions,
        "built_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    staging = recipe.mark.with_suffix(".writing")
    staging.write_text(json.dumps(record, indent=1) + "\n")
    staging.replace(recipe.mark)
    return record


def read_mark(recipe: Recipe) -> dict[str, Any] | None:
    """What :func:`finish` wrote; ``None`` for a peer that is not built."""
    try:
        found: dict[str, Any] = json.loads(recipe.mark.read_text())
    except FileNotFoundError:
        return None
    except (OSError, json.JSONDecodeError) as error:
        raise OmniError(f"{recipe.mark}: expected the record of a build: {error}; {recipe.remedy}") from error
    return found


def installed_versions(python: Path, uv: str) -> dict[str, str]:
    """Every package of an environment with its version."""
    listed = subprocess.run(
        [uv, "pip", "list", "--quiet", "--format", "json", "--python", str(python)],
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        raise OmniError(f"{python}: {listed.stderr.strip() or 'its packages cannot be listed'}")
    return {package["name"]: package["version"] for package in json.loads(listed.stdout)}
