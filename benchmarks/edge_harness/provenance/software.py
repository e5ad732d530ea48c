"""The software: commits, versions, the library's digest and the variables that change what is measured."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks.edge_harness.artifact.schema import Software
from benchmarks.edge_harness.provenance.model import file_sha256
from benchmarks.edge_harness.provenance.scrub import REPOSITORY, scrub
from vllm_omni import __version__, settings
from vllm_omni.native import native
from vllm_omni.plugin import VLLM_DISTRIBUTIONS


def collect_software() -> Software:
    """What is installed and built here. Nothing is imported that is not loaded already: torch and vLLM are
    asked for their metadata."""
    # Results that lie about do not change what is measured.
    changes = git_output(
        "status", "--porcelain", "--", ".", ":(exclude,glob)**/results/**", ":(exclude)baselines"
    )
    library = native().module
    distribution = next((name for name in VLLM_DISTRIBUTIONS if _version(name)), None)
    return Software(
        git_commit=git_output("rev-parse", "--verify", "--quiet", "HEAD"),
        git_dirty=None if changes is None else changes != "",
        # The compiler found now; the library's digest says whether two figures come from one build.
        rustc=_output("rustc", "--version"),
        rust_profile=None if library is None else library.BUILD_PROFILE,
        library_sha256=None if library is None else file_sha256(Path(str(library.__file__))),
        layout_version=None if library is None else library.LAYOUT_VERSION,
        isa_level=None if library is None else library.isa_level(),
        vllm_omni_edge=__version__,
        python=f"{platform.python_implementation()} {sys.version.split()[0]}",
        torch=_version("torch"),
        vllm=_version(distribution) if distribution else None,
        vllm_distribution=distribution,
        libc=" ".join(platform.libc_ver()),
        settings=settings.own_variables(),
        environment={name: scrub(value) for name, value in settings.performance_variables().items()},
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_output(*arguments: str) -> str | None:
    """What git says of this repository, or None when there is no git or it fails."""
    return _output("git", *arguments)


def _output(*command: str) -> str | None:
    """What the command prints, or None when there is no such program or it fails."""
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
