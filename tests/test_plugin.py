from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from vllm_omni import failure_report, patch, plugin
from vllm_omni.errors import FormatError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process where vLLM has not loaded the plugin; what other tests registered comes back."""
    from vllm.model_executor.layers import quantization

    applied = [record for record in patch.patches() if record.is_applied()]
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(patch, "_outcomes", {})
    methods = list(quantization.QUANTIZATION_METHODS)
    custom = dict(quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG)
    quantization.QUANTIZATION_METHODS[:] = [name for name in methods if name != "cpu_int4"]
    quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG.pop("cpu_int4", None)
    for record in applied:
        record.undo()
    yield
    quantization.QUANTIZATION_METHODS[:] = methods
    quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG.clear()
    quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG.update(custom)
    for record in patch.patches():
        record.apply() if record in applied else record.undo()


def registered() -> bool:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    return "cpu_int4" in QUANTIZATION_METHODS


def engine_patches() -> list[bool]:
    return [record.is_applied() for record in patch.patches() if record.stage == "engine"]


def test_the_entry_point_leads_here() -> None:
    found = [point for point in entry_points(group="vllm.general_plugins") if point.name == "vllm_omni_edge"]
    assert [point.value for point in found] == ["vllm_omni.plugin:register_general"]
    assert found[0].load() is plugin.register_general


def test_registers_config_ops_and_patches_and_bears_a_second_call() -> None:
    import torch
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config

    from vllm_omni.quantization.cpu_int4 import CpuInt4Config

    plugin.register_general()
    plugin._registered = False
    plugin.register_general()
    assert QUANTIZATION_METHODS.count("cpu_int4") == 1
    assert get_quantization_config("cpu_int4") is CpuInt4Config
    assert torch.ops.vllm.cpu_int4_linear
    assert torch.ops.vllm.cpu_int4_embedding
    assert all(engine_patches())


def test_disabled_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_OMNI_EDGE_DISABLE", "1")
    plugin.register_general()
    assert not registered()
    assert not any(engine_patches())


def test_on_another_platform_it_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    plugin.register_general()
    assert not registered()
    assert not any(engine_patches())


def test_on_another_vllm_it_names_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "vllm_version", lambda: "0.31.0")
    warnings: list[str] = []
    monkeypatch.setattr(patch._log, "warning", lambda text, *args: warnings.append(text % args))
    plugin.register_general()
    assert not any(engine_patches())
    for record in patch.patches():
        assert (record.target in " ".join(warnings)) == (record.stage == "engine")


CHECKPOINT = {"quant_method": "cpu_int4", "layout_version": 1, "weights_digest": "ab"}


def test_without_an_engine_patch_no_checkpoint_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patches prove that every weight came: without them uninitialised memory could be served."""
    from vllm_omni.quantization.cpu_int4 import CpuInt4Config

    changed = [
        dataclasses.replace(record, source_sha256="0") if "load_weights" in record.target else record
        for record in patch.patches()
    ]
    monkeypatch.setattr(patch, "patches", lambda: tuple(changed))
    plugin.register_general()
    assert registered()
    with pytest.raises(FormatError) as refused:
        CpuInt4Config.from_config(CHECKPOINT)
    assert "DefaultModelLoader.load_weights was left out" in str(refused.value)
    assert "is not the one that it was written for" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_with_all_engine_patches_a_checkpoint_is_served() -> None:
    from vllm_omni.quantization.cpu_int4 import CpuInt4Config

    plugin.register_general()
    assert CpuInt4Config.from_config(CHECKPOINT).options.weights_digest == "ab"


def test_where_the_patches_fail_the_method_is_not_registered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(stage: str, version: str) -> None:
        raise RuntimeError("no such symbol")

    monkeypatch.setattr(patch, "apply_patches", broken)
    visible(monkeypatch)
    plugin.register_general()
    assert not registered()
    assert "no such symbol" in caplog.text


def test_it_never_raises_into_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(settings: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(plugin, "_register", broken)
    visible(monkeypatch)
    plugin.register_general()
    assert "no such thing" in caplog.text
    assert "cpu_int4 is not available" in caplog.text


def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's logger does not propagate, which pytest's capture needs."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


def test_importing_the_plugin_imports_neither_torch_nor_vllm() -> None:
    script = (
        "import sys, vllm_omni.plugin, vllm_omni.patch; print('torch' in sys.modules, 'vllm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


class TestFailureReport:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[logging.Logger]:
        logger = logging.getLogger("vllm")
        before = list(logger.handlers)
        failure_report.report_failures(tmp_path / "cause")
        failure_report.report_failures(tmp_path / "cause")
        assert len(logger.handlers) == len(before) + 1
        yield logging.getLogger("vllm.v1.executor")
        logger.handlers[:] = before

    def fail(self, log: logging.Logger, message: str, error: Exception) -> None:
        try:
            raise error
        except type(error):
            log.exception(message)

    def test_the_first_failed_start_is_written(self, log: logging.Logger, tmp_path: Path) -> None:
        self.fail(log, "Failed to load plugin x", ImportError("beside the point"))
        log.error("WorkerProc failed to start, without an exception")
        self.fail(log, "WorkerProc failed to start.", ValueError("tensor 'a': checksum\n mismatch"))
        self.fail(log, "EngineCore failed to start.", RuntimeError("see above"))
        assert (tmp_path / "cause").read_text() == "tensor 'a': checksum mismatch"

    def test_a_validation_error_is_its_first_message(self) -> None:
        import pydantic

        class Model(pydantic.BaseModel):
            @pydantic.model_validator(mode="after")
            def refuse(self) -> Model:
                raise ValueError("weights: expected 3, found 4")

        with pytest.raises(pydantic.ValidationError) as refused:
            Model()
        assert failure_report.one_line(refused.value) == "weights: expected 3, found 4"

    def test_an_error_without_a_message_is_its_type(self) -> None:
        assert failure_report.one_line(MemoryError()) == "MemoryError"
