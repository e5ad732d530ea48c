"""An instruction set that is asked for and missing: one clear line, before anything heavy starts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_omni import _rust
from vllm_omni.cli import main
from vllm_omni.errors import OmniError
from vllm_omni.native import native

REASON = "this machine has avx2, not avx512"
LINE = f"VLLM_OMNI_EDGE_ISA=avx512: {REASON}"


def lacks(level: str) -> None:
    raise ValueError(REASON)


@pytest.fixture
def no_avx512(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_rust, "set_isa_level", lacks)
    monkeypatch.setenv("VLLM_OMNI_EDGE_ISA", "avx512")
    native.cache_clear()
    yield
    native.cache_clear()


@pytest.mark.usefixtures("no_avx512")
def test_it_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(OmniError, match=LINE):
            native()


@pytest.mark.usefixtures("no_avx512")
@pytest.mark.parametrize("command", ["serve", "demo"])
def test_commands_say_so_before_vllm_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vllm_omni.cli import demo_model, serve

    def started(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"{command} went on")

    for module, name in ((serve, "prepare_environment"), (demo_model, "imported_model")):
        monkeypatch.setattr(module, name, started)
    arguments = {"serve": ["serve", "some/model"], "demo": ["demo", f"--cache-dir={tmp_path}"]}
    assert main.run(arguments[command]) == 2
    assert capsys.readouterr().err == f"error: {LINE}\n"


@pytest.mark.usefixtures("no_avx512")
def test_help_needs_no_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.cli import serve

    given: list[list[str]] = []
    monkeypatch.setattr(serve, "_run_vllm", given.append)
    monkeypatch.setattr(serve, "prepare_environment", lambda machine: "")
    serve.run("some/model", ["--help"])
    assert given == [["serve", "some/model", "--help"]]


def test_the_tensor_api_says_so_at_import() -> None:
    script = (
        "from vllm_omni import _rust\n"
        "from vllm_omni.errors import OmniError\n"
        "def lacks(level):\n"
        f"    raise ValueError({REASON!r})\n"
        "_rust.set_isa_level = lacks\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        import vllm_omni.int4\n"
        "    except OmniError as error:\n"
        "        print(error)\n"
    )
    environment = os.environ | {"VLLM_OMNI_EDGE_ISA": "avx512"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.splitlines() == [LINE, LINE], done.stderr


@pytest.fixture
def warnings_at_load(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is logged while the library is loaded anew."""
    monkeypatch.delenv("VLLM_OMNI_EDGE_ISA", raising=False)
    monkeypatch.delenv("VLLM_OMNI_EDGE_NATIVE", raising=False)
    messages: list[str] = []
    log = logging.getLogger("vllm.omni_edge")
    monkeypatch.setattr(log, "warning", lambda message, *values: messages.append(message % values))
    native.cache_clear()
    yield messages
    native.cache_clear()


def test_tiles_that_fail_their_check_are_one_warning(
    monkeypatch: pytest.MonkeyPatch, warnings_at_load: list[str]
) -> None:
    reason = "amx_int8 is not used: amx-int8q4 computed 1 instead of 2 (row 60 of 61, output 15)"
    monkeypatch.setattr(_rust, "tiles_left_out", lambda: [reason])
    for _ in range(2):
        assert native().module is _rust
    assert warnings_at_load == [f"AMX: {reason}"]


def test_tiles_that_pass_or_are_missing_are_no_warning(warnings_at_load: list[str]) -> None:
    reasons = _rust.tiles_left_out()
    left_out = {reason.split()[0] for reason in reasons}
    assert left_out <= {"amx_int8", "amx_bf16"}
    assert not any(kernel.available for kernel in _rust.kernels() if kernel.isa in left_out)
    assert native().module is _rust
    assert warnings_at_load == [f"AMX: {reason}" for reason in reasons]
