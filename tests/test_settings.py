"""The environment, and nothing else, decides the settings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from vllm_omni.errors import FormatError, OmniError
from vllm_omni.settings import (
    PREFIX,
    Settings,
    is_secret,
    own_variables,
    performance_variables,
    user_cache_folder,
)


def test_defaults() -> None:
    assert Settings.from_env({}) == Settings(isa="auto", native=True, disable=False)


@pytest.mark.parametrize("isa", ["auto", "scalar", "avx2", "avx_vnni", "avx512", "amx"])
def test_isa(isa: str) -> None:
    assert Settings.from_env({PREFIX + "ISA": isa}).isa == isa


def test_switches() -> None:
    settings = Settings.from_env({PREFIX + "NATIVE": "0", PREFIX + "DISABLE": "1", "VLLM_LOGGING_LEVEL": "x"})
    assert (settings.native, settings.disable) == (False, True)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "ISA", "scalar")
    assert Settings.from_env().isa == "scalar"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ISAA", "avx2", "unknown environment variable VLLM_OMNI_EDGE_ISAA: expected one of VLLM_OMNI_EDGE_"),
        (
            "ISA",
            "sse",
            "VLLM_OMNI_EDGE_ISA is 'sse': expected auto or scalar or avx2 or avx_vnni or avx512 or amx",
        ),
        ("ISA", "", "VLLM_OMNI_EDGE_ISA is ''"),
        ("NATIVE", "yes", "VLLM_OMNI_EDGE_NATIVE is 'yes': expected 1 or 0"),
        ("DISABLE", "true", "VLLM_OMNI_EDGE_DISABLE is 'true': expected 0 or 1"),
    ],
)
def test_bad_values(name: str, value: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    env = {PREFIX + name: value}
    with pytest.raises(OmniError) as error:
        Settings.from_env(env)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    # In the plugin an exception would end the engine: a warning, and the default.
    caplog.set_level(logging.WARNING, logger="vllm.omni_edge")
    logging.getLogger("vllm").propagate = True
    assert Settings.from_env(env, strict=False) == Settings()
    assert message in caplog.text


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().isa = "avx2"  # type: ignore[misc]


def test_user_cache_folder() -> None:
    assert user_cache_folder({"XDG_CACHE_HOME": "/elsewhere"}) == Path("/elsewhere/vllm-omni-edge")
    home = Path.home() / ".cache" / "vllm-omni-edge"
    assert user_cache_folder({}) == home
    assert user_cache_folder({"XDG_CACHE_HOME": "not/absolute"}) == home


def test_a_format_error_is_both() -> None:
    assert issubclass(FormatError, ValueError)
    assert issubclass(FormatError, OmniError)


def test_a_measurements_variables_hold_no_secret() -> None:
    shown = {"OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1", "GLIBC_TUNABLES": "x"}
    hidden = {"VLLM_API_KEY": "k", "VLLM_USE_TOKEN": "t", "HOME": "h", "OMP": "no variable of OpenMP"}
    assert performance_variables(shown | hidden) == shown


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "AWS_ACCESS_KEY_ID", "OPENAI_KEY", "GITHUB_PAT", "DB_PWD", "DB_PASSWD", "db_password",
        "MY_SECRET", "CREDENTIALS", "PROXY_AUTH", "SSH_PASSPHRASE",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "KMP_BLOCKTIME", "PATTERN", "LIBPATH", "COMPAT"],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


def test_own_variables_leave_out_paths() -> None:
    env = {PREFIX + "ISA": "avx2", PREFIX + "FAILURE_FILE": "/x", "OTHER": "1"}
    assert own_variables(env) == {PREFIX + "ISA": "avx2"}
