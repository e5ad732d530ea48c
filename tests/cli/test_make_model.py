from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_omni.cli.main import run


def test_a_model_is_made_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tiny"
    assert run(["make-model", "tiny-llama", str(folder), "--format", "bf16", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == f"made tiny-llama (1.7 M random weights, seed 3, bf16) in {folder}"
    assert "original weights sha256" in captured.out
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(os.listdir(folder))


def test_a_spark_model_is_made_with_its_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["make-model", "tiny-spark", str(tmp_path / "spark")]) == 0
    assert "cannot be served yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt-5", "m"], "GEOMETRY: expected one of"),
        (["tiny-llama", "m", "--format", "int3"], "--format: expected one of"),
        (["tiny-llama", "m", "--seed", "x"], "--seed"),
        (["tiny-spark", "m", "--format", "gguf-f16"], "no architecture for tiny-spark"),
        (["tiny-llama", "absent/m"], "no folder absent"),
        (["tiny-llama", "taken"], "taken: exists already"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    assert run(["make-model", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert os.listdir(tmp_path) == ["taken"]


def test_an_existing_target_is_told_without_loading_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from vllm_omni.cli.main import run; code = run(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "make-model", "tiny-llama", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
