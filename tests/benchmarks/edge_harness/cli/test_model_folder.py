"""A wrong ``--model`` is refused in one line before any engine is imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.edge_harness.cli.app import app
from benchmarks.edge_harness.measure import fresh_process
from vllm_omni.errors import OmniError


@pytest.mark.parametrize("command", ["memory-probe", "decode", "prefill", "startup", "profile", "ledger"])
def test_what_is_no_model_folder_starts_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*arguments: object) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(fresh_process, "program", started)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, found in (
        ("none", "found nothing"),
        ("file", "found a file"),
        ("empty", "without config.json"),
    ):
        folder = tmp_path / name
        done = CliRunner().invoke(app, [command, "--model", str(folder)])
        assert isinstance(done.exception, OmniError), done.output
        assert str(done.exception).startswith(f"--model {folder}: expected a model folder, found ")
        assert found in str(done.exception)
