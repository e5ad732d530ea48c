"""Turning a Hugging Face model folder into what a peer reads, with the peer's own converter."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.edge_harness.adapters.build import Progress, Runner, last_words, run_command
from benchmarks.edge_harness.adapters.recipes import Recipe
from vllm_omni.errors import OmniError

# Beside the converted model: what the conversion made, for the artifact.
FACTS_FILE = "peer_facts.json"
# Models come from folders; nothing is fetched, and nothing is told to anybody.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


def _onnxruntime(recipe: Recipe, model: Path, out: Path, group_size: int) -> list[str]:
    options = ("accuracy_level=4", f"block_size={group_size}")
    return [
        *(str(recipe.converter_python), "-m", "onnxruntime_genai.models.builder", "-i", str(model)),
        *("-o", str(out), "-p", "int4", "-e", "cpu", "-c", str(recipe.folder / "conversions")),
        *("--extra_options", *options),
    ]


def _openvino(recipe: Recipe, model: Path, out: Path, group_size: int) -> list[str]:
    return [
        *(str(recipe.converter_python.with_name("optimum-cli")), "export", "openvino", "--model", str(model)),
        *("--task", "text-generation-with-past", "--weight-format", "int4", "--ratio", "1.0", "--sym"),
        *("--group-size", str(group_size), str(out)),
    ]


# Without these an engine cannot use the folder; a converter that cannot read the tokenizer goes on without.
_NEEDED = {
    "onnxruntime-genai": ("model.onnx", "genai_config.json", "tokenizer.json"),
    "openvino-genai": ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml"),
}
# Prints ``FACTS_FILE``'s content; run by the converter's Python, which can read the engine's format.
_FACTS_SCRIPTS = {"onnxruntime-genai": "onnx_facts.py", "openvino-genai": "openvino_facts.py"}

CONVERTERS: dict[str, Callable[[Recipe, Path, Path, int], list[str]]] = {
    "onnxruntime-genai": _onnxruntime,
    "openvino-genai": _openvino,
}


def run_offline(argv: Sequence[str], log: Path, progress: Progress) -> int:
    """As :func:`run_command`, with the network shut to the libraries that know how to ask for it."""
    return run_command(["env", *(f"{name}={value}" for name, value in OFFLINE.items()), *argv], log, progress)


def convert(recipe: Recipe, model: Path, out: Path, group_size: int, runner: Runner = run_offline) -> None:
    """Make the new folder ``out``, whole or not at all."""
    if recipe.name not in CONVERTERS:
        raise OmniError(f"{recipe.name}: it has no converter; expected one of {', '.join(CONVERTERS)}")
    if not (recipe.converter_python.parents[1] / ".installed").exists():
        raise OmniError(
            f"{recipe.name}: its converter is not installed: "
            f"python -m benchmarks.edge_harness.adapters.peers build {recipe.name} --converter"
        )
    if not (model / "config.json").is_file():
        raise OmniError(f"{model}: expected a model folder with a config.json")
    if "quantization_config" in json.loads((model / "config.json").read_text()):
        raise OmniError(f"{model}: expected plain weights (bf16), found a quantization_config")
    if out.exists():
        raise OmniError(f"{out}: expected a new folder, found one")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.with_name(f".{out.name}.converting")
    shutil.rmtree(staging, ignore_errors=True)
    log = recipe.folder / "convert.log"
    argv = CONVERTERS[recipe.name](recipe, model.resolve(), staging.resolve(), group_size)
    try:
        if code := runner(argv, log, lambda done, total: None):
            raise OmniError(f"{recipe.name}: conversion failed (exit {code}): {last_words(log)}; log: {log}")
        for name in _NEEDED[recipe.name]:
            if not (staging / name).is_file():
                raise OmniError(
                    f"{recipe.name}: the converter made no {name}, maybe for a tokenizer_class that its "
                    f"transformers does not know (see {model / 'tokenizer_config.json'}); log: {log}"
                )
        _write_facts(recipe, staging)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_facts(recipe: Recipe, folder: Path) -> None:
    script = Path(__file__).with_name(_FACTS_SCRIPTS[recipe.name])
    done = subprocess.run(
        [str(recipe.converter_python), str(script), str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise OmniError(f"{recipe.name}: the converted model cannot be read: {reason}")
    (folder / FACTS_FILE).write_text(done.stdout)
