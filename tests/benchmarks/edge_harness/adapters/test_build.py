"""Plans of the builds, run by a runner that only records; what a failure says; what an archive may hold."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.edge_harness.adapters import build as building
from benchmarks.edge_harness.adapters.recipes import BUILD_TOOLS, RECIPES, Recipe, Step, recipe
from vllm_omni.errors import OmniError

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\n"
AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def archive_bytes() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        info = tarfile.TarInfo("engine-1/vendor/engine/CMakeLists.txt")
        text = b"project(engine)\n"
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    return data.getvalue()


@pytest.fixture
def engine() -> Recipe:
    """A recipe whose archive the recording runner can deliver."""
    return Recipe(
        name="engine",
        version="1",
        kind="cmake",
        distribution="the-engine",
        run_here="",
        sha256=hashlib.sha256(archive_bytes()).hexdigest(),
        tree="vendor/engine",
        lacking=(("cmake/left-out.cmake", "set(A 1)\n"),),
        flags=("-DX=1",),
        targets=("engine", "bench"),
    )


class Recorder:
    """A runner that makes what its commands would have made."""

    def __init__(self, made: Recipe, fails_at: str = "", output: str = "") -> None:
        self.made, self.fails_at, self.output = made, fails_at, output
        self.commands: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], log: Path, progress: building.Progress) -> int:
        self.commands.append(argv)
        line = " ".join(argv)
        with log.open("a") as file:
            file.write(f"$ {line}\n{self.output}\n")
        if self.fails_at and self.fails_at in line:
            return 3
        if "download" in argv:
            folder = Path(argv[argv.index("--dest") + 1])
            folder.mkdir(exist_ok=True)
            (folder / "the_engine-1.tar.gz").write_bytes(archive_bytes())
        if "venv" in argv:
            self.made.python.parent.mkdir(parents=True)
            self.made.python.touch()
        if "install" in argv:
            self.made.python.with_name("ninja").touch()
        if "-G" in argv:
            (self.made.folder / "build").mkdir()
            (self.made.folder / "build" / "build.ninja").touch()
        if "--build" in argv:
            progress(2, 2)
        return 0


def test_a_source_build_goes_from_the_tools_to_the_targets(engine: Recipe):
    runner, titles, counts = Recorder(engine), [], []
    steps = building.plan(engine, "uv")
    building.build(
        engine, steps, runner=runner, on_step=titles.append, progress=lambda *done: counts.append(done)
    )
    words = [" ".join(command) for command in runner.commands]
    assert titles[0] == "environment of the build tools"
    assert titles[-1] == "compile"
    assert words[0].startswith("uv venv")
    assert sys.executable in words[0]
    assert all(tool in words[1] for tool in BUILD_TOOLS)
    assert "--require-hashes" in words[2]
    assert "--no-binary the-engine" in words[2]
    pinned = (engine.folder / "requirement.txt").read_text()
    assert pinned == f"the-engine==1 --hash=sha256:{engine.sha256}\n"
    assert "-DX=1" in words[3]
    assert f"-S {engine.source / 'vendor/engine'}" in words[3]
    assert words[4].endswith("--target engine bench")
    assert (engine.source / "vendor/engine/cmake/left-out.cmake").read_text() == "set(A 1)\n"
    assert counts == [(2, 2)]


def test_an_interrupted_build_goes_on_where_it_stopped(engine: Recipe):
    steps = building.plan(engine, "uv")
    with pytest.raises(OmniError):
        building.build(engine, steps, runner=Recorder(engine, fails_at="--build"))
    again = Recorder(engine)
    building.build(engine, building.plan(engine, "uv"), runner=again)
    assert [command[1] for command in again.commands] == ["--build"]


def test_a_failed_step_names_the_peer_the_step_the_reason_and_the_log(engine: Recipe):
    output = "[1/9] compiling\nx.cpp:3:1: error: expected ';'\nninja: build stopped"
    with pytest.raises(OmniError) as failed:
        building.build(
            engine, building.plan(engine, "uv"), runner=Recorder(engine, fails_at="-G", output=output)
        )
    message = str(failed.value)
    assert "\n" not in message
    for part in ("engine: configure failed (exit 3)", "x.cpp:3:1: error", str(engine.folder / "build.log")):
        assert part in message
    assert not engine.is_built


def test_a_runner_that_downloads_nothing_is_found_out(engine: Recipe):
    runner = Recorder(engine)
    steps = [step for step in building.plan(engine, "uv") if step.title.startswith("download")]
    silent = [replace(step, argv=("true",)) for step in steps]
    with pytest.raises(OmniError, match=r"expected the_engine-1\.tar\.gz, found none"):
        building.build(engine, silent, runner=runner)


def test_an_archive_with_another_digest_is_not_unpacked(tmp_path: Path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(archive_bytes())
    with pytest.raises(OmniError, match=r"a\.tar\.gz: expected sha256 00, found"):
        building.unpack(archive, "00", tmp_path / "source")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_an_archive_is_unpacked_without_its_top_folder(tmp_path: Path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(archive_bytes())
    building.unpack(archive, hashlib.sha256(archive_bytes()).hexdigest(), tmp_path / "source")
    assert (tmp_path / "source/vendor/engine/CMakeLists.txt").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "source"]


def test_the_mark_is_what_makes_a_peer(engine: Recipe):
    engine.folder.mkdir(parents=True)
    assert building.read_mark(engine) is None
    written = building.finish(engine, {"cmake": "4"})
    assert engine.is_built
    assert building.read_mark(engine) == written
    assert written["build_flags"] == ["-DX=1"]
    engine.mark.write_text("{")
    with pytest.raises(OmniError, match=r"built\.json: expected the record of a build"):
        building.read_mark(engine)


@pytest.mark.parametrize("name", ["onnxruntime-genai", "openvino-genai", "vllm-zentorch"])
def test_an_environment_has_the_pinned_packages_and_what_reports_home_goes(name: str):
    made = recipe(name)
    words = [" ".join(step.argv) for step in building.plan(made, "uv")]
    assert all(any(package in line for line in words) for package in made.packages)
    removals = [line for line in words if "uninstall" in line]
    assert len(removals) == (1 if made.removed_packages else 0)
    assert all("==" in package for package in (*made.packages, *made.converter_packages))


def test_torch_is_overridden_where_vllm_asks_for_a_local_version():
    made = recipe("vllm-zentorch")
    made.folder.mkdir(parents=True)
    steps = building.plan(made, "uv")
    written: list[Step] = [step for step in steps if step.title == "overrides"]
    assert written[0].call is not None
    written[0].call()
    assert made.override_file is not None
    assert "torch==2.13.0" in made.override_file.read_text().splitlines()
    install = next(step.argv for step in steps if "install" in step.argv)
    assert install[install.index("--override") + 1] == str(made.override_file)


def test_a_peer_for_another_processor_is_refused():
    zen = recipe("vllm-zentorch")
    refusal = building.check_processor(zen, INTEL)
    assert refusal is not None
    assert "AuthenticAMD" in refusal
    assert "GenuineIntel" in refusal
    assert "\n" not in refusal
    assert building.check_processor(zen, AMD) is None
    assert building.check_processor(recipe("llama.cpp"), INTEL) is None


def test_every_source_has_a_digest():
    for made in RECIPES.values():
        if made.kind == "cmake":
            assert len(made.sha256) == 64
            assert made.targets
            assert made.tree


def test_the_real_runner_logs_counts_and_returns_the_code(tmp_path: Path):
    counts: list[tuple[int, int]] = []
    script = "print('[1/2] a'); print('[2/2] b'); raise SystemExit(5)"
    code = building.run_command(
        [sys.executable, "-c", script], tmp_path / "log", lambda *done: counts.append(done)
    )
    assert code == 5
    assert counts == [(1, 2), (2, 2)]
    assert building.last_words(tmp_path / "log") == "[2/2] b"
