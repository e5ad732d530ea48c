"""The rules of the house that a reader could break without noticing (docs/architecture.md says why)."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FILE_LINES = 600
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
TEXT_SUFFIXES = {
    "", ".cfg", ".in", ".json", ".lock", ".md", ".py", ".pyi", ".rs", ".sh", ".toml", ".txt", ".yaml", ".yml",
}  # fmt: skip

# Where `unsafe` may be written: one file per instruction set, one for torch's C ABI, one for each crate's
# system calls, the tile kernels (strips of activations come as pointers, and emulated tiles load from
# them), and the drivers: their one call of a selected kernel and their threads' disjoint writes.
UNSAFE_FILES = (
    r"rust/int4-kernels/src/x86_64/(\w+/)?\w+\.rs",
    r"rust/int4-kernels/src/(os|kernel|scalar|linear|tiles|dense|dense/kernel)\.rs",
    r"rust/int4-kernels/src/amx(/(tile_unit|emulator|self_check))?\.rs",
    r"rust/procmon/src/os\.rs",
    r"rust/omni-py/src/(torch_abi(/\w+)?|os)\.rs",
)
# Who reads or writes the process environment. The commands build the environment of their own children.
ENVIRONMENT_FILES = (r"vllm_omni/settings\.py", r"vllm_omni/cli/\w+\.py")


@cache
def files() -> tuple[str, ...]:
    """Tracked files, and new ones that are not ignored, as paths from the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def sources(pattern: str) -> list[str]:
    found = [name for name in files() if re.fullmatch(pattern, name)]
    assert found, f"no file matches {pattern}"
    return found


def read(name: str) -> str:
    return (ROOT / name).read_text()


def matches_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def rust_code(text: str) -> str:
    """Without comments and string literals, so that words in them do not count."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', " ", text, flags=re.DOTALL)


def test_unsafe_stays_where_it_is_listed():
    using = [name for name in sources(r"rust/.*\.rs") if re.search(r"\bunsafe\b", rust_code(read(name)))]
    assert [name for name in using if not matches_one_of(name, UNSAFE_FILES)] == []


def test_every_unsafe_block_states_why_it_is_sound():
    """A block, or an `unsafe impl`, has a SAFETY comment in its line or the eight above it."""
    silent = []
    for name in sources(r"rust/.*\.rs"):
        lines = read(name).splitlines()
        for number, line in enumerate(lines):
            if re.search(r"\bunsafe\s*(\{|impl\b)", rust_code(line)):
                above = lines[max(0, number - 8) : number + 1]
                if not any("SAFETY:" in text for text in above):
                    silent.append(f"{name}:{number + 1}")
    assert silent == []


def test_the_environment_is_read_in_one_place():
    reading = []
    for name in sources(r"(vllm_omni|benchmarks)/.*\.py"):
        for node in ast.walk(ast.parse(read(name))):
            is_access = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}
            is_import = isinstance(node, ast.ImportFrom) and node.module == "os"
            imported = {alias.name for alias in node.names} if is_import else set()
            if (is_access or imported & {"environ", "getenv"}) and not matches_one_of(
                name, ENVIRONMENT_FILES
            ):
                reading.append(f"{name}:{node.lineno}")
    assert reading == []


def test_names_say_what_a_file_is():
    vague = [
        name
        for name in files()
        if VAGUE_NAMES & {part for piece in Path(name).parts for part in re.split(r"[._-]", piece.lower())}
    ]
    assert vague == []


def test_files_stay_short():
    """Of a Rust file the part before its unit tests counts."""
    long = {
        name: lines
        for name in sources(r"(rust|vllm_omni|benchmarks|tests|tools)/.*\.(py|pyi|rs)")
        if (lines := read(name).partition("#[cfg(test)]\nmod ")[0].count("\n")) >= LONGEST_FILE_LINES
    }
    assert long == {}


def test_crates_depend_one_way():
    """int4-kernels and procmon stand alone; only omni-py knows Python."""
    foreign = {
        "int4-kernels": r"\b(pyo3|numpy|procmon|omni)",
        "procmon": r"\b(pyo3|numpy|int4-kernels|omni)",
    }
    for crate, forbidden in foreign.items():
        dependencies = re.findall(
            r"^([\w-]+)\s*(?:\.workspace|=)", read(f"rust/{crate}/Cargo.toml"), re.MULTILINE
        )
        assert [name for name in dependencies if re.match(forbidden, name)] == [], crate


def test_the_kernels_do_no_input_or_output():
    for name in sources(r"rust/int4-kernels/src/.*\.rs"):
        assert not re.search(r"std::(fs|net|process|io)\b", rust_code(read(name))), name


IMPORT_RULES = [
    # (files, module prefixes that they may not import)
    (r"vllm_omni/.*\.py", ("benchmarks", "tests")),
    (r"vllm_omni/(errors|settings|requirements|monitor|__init__)\.py", ("torch", "vllm.", "transformers")),
    (r"vllm_omni/(ops|portable|int4|monitor)\.py", ("vllm.", "transformers", "vllm_omni.quantization")),
    (
        r"vllm_omni/formats/.*\.py",
        ("vllm.", "transformers", "vllm_omni.quantization", "vllm_omni.checkpoints"),
    ),
    (r"vllm_omni/(checkpoints|quantization)/.*\.py", ("vllm_omni.cli", "vllm_omni.plugin")),
    (r"vllm_omni/(patch|patches/\w+)\.py", ("vllm_omni.cli",)),
    (r"tools/.*\.py", ("vllm_omni", "benchmarks", "tests")),
]


def imports_of(name: str) -> set[str]:
    """Absolute names of what a file imports, anywhere in it."""
    package = name.removesuffix(".py").split("/")[:-1]
    found = set()
    for node in ast.walk(ast.parse(read(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(("pattern", "forbidden"), IMPORT_RULES)
def test_imports_go_one_way(pattern: str, forbidden: tuple[str, ...]):
    wrong = [
        f"{name} imports {module}"
        for name in sources(pattern)
        for module in sorted(imports_of(name))
        if any(f"{module}.".startswith(prefix.rstrip(".") + ".") for prefix in forbidden)
    ]
    assert wrong == []


def test_no_path_of_one_machine_is_written_down():
    """Nor the host of a package registry: clients are called as each machine has them set up."""
    # Labels and domains apart, so that this file names no host either.
    hosts = (
        ("pypi", "org"),
        ("python" + "hosted", "org"),
        ("pytorch", "org/whl"),
        ("debian", "org"),
        ("index", "crates", "io"),
    )
    machine_paths = re.compile(
        r"(?<![\w.$}~-])/(root|home|work|Users|tmp/w)/\w|\b("
        + "|".join(re.escape(".".join(host)) for host in hosts)
        + r")\b"
    )
    found = [
        f"{name}:{number}"
        for name in files()
        if Path(name).suffix in TEXT_SUFFIXES and name != "tests/test_house.py"
        for number, line in enumerate(read(name).splitlines(), 1)
        if machine_paths.search(line)
    ]
    assert found == []


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{name}:{number}"
        for name in sources(r"(rust|vllm_omni|benchmarks|tests|tools|docs)/.*\.(py|pyi|rs|md|toml)")
        if name != "tests/test_house.py"
        for number, line in enumerate(read(name).splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_tests_are_skipped_only_for_hardware():
    """A skip names the hardware that is missing; `pytest.importorskip` would hide a broken set-up."""
    found = []
    for name in sources(r"tests/.*\.py"):
        if name == "tests/test_house.py":
            continue
        for number, line in enumerate(read(name).splitlines(), 1):
            if "importorskip" in line or re.search(r"\bxfail\b", line):
                found.append(f"{name}:{number}")
    assert found == []


def test_measurement_artifacts_are_tracked_and_captures_are_not():
    def is_ignored(path: str) -> bool:
        return subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=ROOT).returncode == 0

    kept = (
        "benchmarks/kernels/results/a.json",
        "benchmarks/edge_harness/results/suite/run.json",
        "baselines/m/s/a.json",
    )
    assert [path for path in kept if is_ignored(path)] == []
    ignored = (
        "benchmarks/kernels/results/a.bin",
        ".venv/x",
        "target/x",
        "models/m/model.safetensors",
        "x.gguf",
        "p.npz",
    )
    assert [path for path in ignored if not is_ignored(path)] == []
