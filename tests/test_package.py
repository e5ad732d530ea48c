"""The package: lean to import, and refused where it cannot work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vllm_omni

ROOT = Path(vllm_omni.__file__).parents[1]
PACKAGE = ROOT / "vllm_omni"


def python(
    code: str, *, path: tuple[Path, ...] = (ROOT,), argv: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter with ``path`` in front of its own."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", code, *argv], env=env, capture_output=True, text=True, check=False
    )


def upstream_metadata(folder: Path, version: str = "0.99.0") -> Path:
    """A folder that makes the upstream distribution look installed when it is on the path."""
    info = folder / f"vllm_omni-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-omni\nVersion: {version}\n")
    return folder


def test_import_is_lean() -> None:
    code = "import json, sys, vllm_omni; print(json.dumps(sorted(sys.modules)))"
    result = python(code)
    assert result.returncode == 0, result.stderr
    modules = set(json.loads(result.stdout))
    heavy = {"torch", "numpy", "vllm", "transformers", "gguf", "pydantic", "rich", "typer", "vllm_omni._rust"}
    assert not modules & heavy


@pytest.mark.parametrize("module", ["vllm_omni.cli.main", "vllm_omni.settings", "vllm_omni.plugin"])
def test_what_starts_first_does_not_import_torch(module: str) -> None:
    result = python(f"import sys, {module}; print('torch' in sys.modules, 'vllm' in sys.modules)")
    assert result.stdout.split() == ["False", "False"], result.stderr


@pytest.mark.parametrize("order", ["upstream first", "upstream last"])
def test_upstream_distribution_is_refused(order: str, tmp_path: Path) -> None:
    stub = upstream_metadata(tmp_path)
    path = (stub, ROOT) if order == "upstream first" else (ROOT, stub)
    result = python("import vllm_omni", path=path)
    assert result.returncode == 1
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.startswith(
        "ImportError: vllm-omni-edge and vllm-omni 0.99.0 install into the same package folder"
    )
    assert "pip uninstall" in last_line


def test_upstream_that_replaced_our_init_is_refused_by_the_command(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "vllm_omni", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (tmp_path / "vllm_omni" / "__init__.py").write_text('__version__ = "0.99.0"\n')
    upstream_metadata(tmp_path)
    result = python("from vllm_omni.cli.main import main; main()", path=(tmp_path,), argv=("version",))
    assert result.returncode != 0
    assert "cannot share an environment" in result.stderr


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    stub = upstream_metadata(tmp_path)
    script = tmp_path / "vllm-omni"
    script.write_text("from vllm_omni.cli.main import main\nmain()\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(stub)))}
    result = subprocess.run(
        [sys.executable, str(script), "version"], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert re.fullmatch(r"error: vllm-omni-edge and vllm-omni 0\.99\.0 .*\n", result.stderr)


@pytest.mark.parametrize(
    ("system", "machine"), [("Linux", "aarch64"), ("Darwin", "x86_64"), ("Windows", "AMD64")]
)
def test_another_platform_is_named(system: str, machine: str) -> None:
    code = (
        "import platform\n"
        f"platform.system = lambda: {system!r}\n"
        f"platform.machine = lambda: {machine!r}\n"
        "import vllm_omni\n"
    )
    result = python(code)
    assert result.returncode == 1
    expected = f"ImportError: vllm-omni-edge needs Linux on x86-64; this is {system} on {machine}"
    assert result.stderr.strip().splitlines()[-1] == expected


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    assert vllm_omni.__version__ == project["version"] == workspace["version"]
