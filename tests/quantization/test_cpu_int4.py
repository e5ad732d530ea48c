"""``cpu_int4`` in a stock vLLM engine, eager, on tiny random models, against transformers in fp32."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from benchmarks.edge_harness.fidelity.reference import int8_round_trip
from tests.model.engine import engine
from tests.quantization.tiny_checkpoint import VOCABULARY, TinyCheckpoint, reference_logprobs
from vllm_omni import int4, layout

PROMPTS = [
    torch.randint(2, VOCABULARY, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    for length in (40, 7)
]
NEW_TOKENS = 6
GROUP = TinyCheckpoint.group_size
BOUNDS: dict[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "kv_cache_memory_bytes": 16 << 20,
    "max_logprobs": -1,
}


@pytest.fixture(scope="module", autouse=True)
def plugin() -> None:
    from vllm_omni.plugin import register_general

    register_general()


def logprobs(steps: list[Any]) -> torch.Tensor:
    """vLLM's dictionaries as ``[positions, vocabulary]``."""
    return torch.tensor([[step[token].logprob for token in range(VOCABULARY)] for step in steps])


def observed(llm: Any) -> list[tuple[list[int], torch.Tensor]]:
    """Per prompt its tokens with vLLM's own behind them, and the log-probabilities of all but the first:
    ``[tokens - 1, vocabulary]``, of prefill, then of decode."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0,
        max_tokens=NEW_TOKENS,
        logprobs=-1,
        prompt_logprobs=-1,
        ignore_eos=True,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    found = []
    for output, prompt in zip(llm.generate(prompts, sampling, use_tqdm=False), PROMPTS, strict=True):
        steps = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        found.append((prompt + list(output.outputs[0].token_ids), logprobs(steps)))
    return found


def differences(
    found: list[tuple[list[int], torch.Tensor]], reference: PreTrainedModel
) -> list[torch.Tensor]:
    return [values - reference_logprobs(reference, tokens)[:-1] for tokens, values in found]


def errors(llm: Any, reference: PreTrainedModel) -> list[float]:
    """The largest error of a log-probability for each prompt."""
    return [error.abs().max().item() for error in differences(observed(llm), reference)]


def rms(found: list[tuple[list[int], torch.Tensor]], reference: PreTrainedModel) -> float:
    return torch.cat(differences(found, reference)).square().mean().sqrt().item()


def mixed(module: str) -> int:
    return 8 if module.endswith(("embed_tokens", "v_proj", "down_proj")) else 4


EXACT = [
    pytest.param(TinyCheckpoint(bits_of=mixed, symmetric=False), id="llama-tied-mixed-bits"),
    pytest.param(TinyCheckpoint("qwen2", tied=False, adjacent=False), id="qwen2-untied-biases-apart"),
    pytest.param(
        TinyCheckpoint(fused=True, tied=False, ignore=("lm_head", "down_proj")), id="llama-fused-ignore"
    ),
    pytest.param(TinyCheckpoint(ignore=("embed_tokens",)), id="llama-tied-plain-table"),
]


@pytest.mark.engine
@pytest.mark.parametrize("checkpoint", EXACT)
def test_fp32_models_are_exact_but_for_rounding(checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    reference = checkpoint.write(tmp_path / "model")
    with engine(tmp_path / "model", dtype="float32", **BOUNDS) as llm:
        # fp32 sums in another order, through two layers, on logits of a few tens.
        assert max(errors(llm, reference)) < 2e-3


@contextlib.contextmanager
def int8_activations(reference: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The reference with the input of every linear layer rounded as the option ``int8`` says: symmetric, one
    scale per row and per weight group."""

    def rounded(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        return int8_round_trip(inputs[0], GROUP)

    layers = [module for module in reference.modules() if isinstance(module, torch.nn.Linear)]
    handles = [layer.register_forward_pre_hook(rounded) for layer in layers]
    yield reference
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def shifted_zero_point(reference: PreTrainedModel, folder: Path) -> Iterator[PreTrainedModel]:
    """The reference as a kernel would have it that takes one layer's zero-points one too high."""
    module = "model.layers.0.mlp.down_proj"
    packed = int4.load_file(folder / "model-00001-of-00002.safetensors")[f"{module}.weight_packed"]
    parameter = reference.get_submodule(module).weight
    scales = layout.scales_of(packed.data, packed.segments[0]).float().repeat_interleave(GROUP, 1)
    with torch.no_grad():
        parameter -= scales
        yield reference
        parameter += scales


@pytest.mark.engine
@pytest.mark.parametrize("activation", ["native", "int8"])
def test_bf16_models_differ_by_the_rounding_of_their_option_alone(activation: str, tmp_path: Path) -> None:
    reference = TinyCheckpoint(dtype=torch.bfloat16).write(tmp_path / "model")
    options = {"additional_config": {"omni": {"activation": activation}}}
    with engine(tmp_path / "model", dtype="bfloat16", **BOUNDS, **options) as llm:
        found = observed(llm)
    exact = rms(found, reference)
    with int8_activations(reference):
        int8 = rms(found, reference)
    with shifted_zero_point(reference, tmp_path / "model"):
        damaged = rms(found, reference)
    own, other = (exact, int8) if activation == "native" else (int8, exact)
    # bf16 between the layers remains; a zero-point that is off by one in one layer is far outside.
    assert 0 < own < damaged / 4
    assert own < other


@pytest.mark.engine
def test_a_tied_head_and_the_file_share_their_bytes(tmp_path: Path) -> None:
    TinyCheckpoint().write(tmp_path / "model")
    with engine(tmp_path / "model", dtype="float32", **BOUNDS) as llm:
        where = llm.apply_model(addresses)[0]
    assert where["head"] == where["table"]
    mapped = where["mapped"]
    assert mapped, "no packed file is mapped"
    for name in ("table", "qkv", "gate_up", "down"):
        assert any(low <= where[name] < high for low, high in mapped), f"{name} is a copy"


def addresses(model: torch.nn.Module) -> dict[str, Any]:
    layer = model.model.layers[0]
    mapped = [
        tuple(int(bound, 16) for bound in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "model-00001" in line
    ]
    return {
        "head": model.lm_head.weight_packed.data_ptr(),
        "table": model.model.embed_tokens.weight_packed.data_ptr(),
        "qkv": layer.self_attn.qkv_proj.weight_packed.data_ptr(),
        "gate_up": layer.mlp.gate_up_proj.weight_packed.data_ptr(),
        "down": layer.mlp.down_proj.weight_packed.data_ptr(),
        "mapped": mapped,
    }


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "model"
    TinyCheckpoint(dtype=torch.bfloat16).write(folder)
    return folder


def flip(folder: Path) -> None:
    """One byte of the last packed tensor's panels."""
    file = folder / "model-00001-of-00002.safetensors"
    with open(file, "r+b") as handle:
        handle.seek(-600, 2)
        byte = handle.read(1)[0]
        handle.seek(-600, 2)
        handle.write(bytes([byte ^ 1]))


def change(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.engine
@pytest.mark.parametrize(
    ("damage", "options", "messages"),
    [
        (flip, {}, ["model-00001-of-00002.safetensors", "weight_packed", "checksum"]),
        (lambda folder: change(folder, bits=4), {}, ["unknown key 'bits'"]),
        (lambda folder: change(folder, layout_version=9), {}, ["layout version 9", "up to 1"]),
        (
            lambda folder: change(folder, ignore=["q_proj"]),
            {},
            ["qkv_proj", "ignores", "k_proj", "all or none"],
        ),
        (lambda folder: None, {"load_format": "dummy"}, ["--load-format dummy"]),
        (lambda folder: None, {"additional_config": {"omni": {"bits": 4}}}, ["unknown key 'bits'"]),
    ],
)
def test_bad_input_is_one_line(
    good: Path, tmp_path: Path, damage, options: dict[str, Any], messages: list[str]
) -> None:
    from vllm_omni.failure_report import one_line

    folder = Path(shutil.copytree(good, tmp_path / "model"))
    damage(folder)
    with pytest.raises(ValueError) as refused, engine(folder, **BOUNDS, **options):  # noqa: PT011 - one_line is asked
        pass
    line = one_line(refused.value)
    for message in messages:
        assert message in line


@pytest.mark.engine
@pytest.mark.parametrize(
    ("drop", "missing"),
    [
        ("model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.k_proj.weight_packed"),
        ("model.layers.0.mlp.down_proj", "model.layers.0.mlp.down_proj.weight_packed"),
        ("model.layers.1.input_layernorm.weight", "model.layers.1.input_layernorm.weight"),
        ("model.embed_tokens", "embed_tokens.weight"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, drop: str, missing: str) -> None:
    TinyCheckpoint(dtype=torch.bfloat16, drop=(drop,)).write(tmp_path / "model")
    with pytest.raises(ValueError, match=missing.replace(".", r"\.")), engine(tmp_path / "model", **BOUNDS):
        pass


def test_what_changes_the_graph_is_in_the_compile_key(good: Path, tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    def key(folder: Path, **options: Any) -> str:
        arguments = EngineArgs(
            model=str(folder), **{k: v for k, v in BOUNDS.items() if k != "enforce_eager"}, **options
        )
        return arguments.create_engine_config().compute_hash()

    folder = Path(shutil.copytree(good, tmp_path / "model"))
    keys = [key(folder)]
    assert key(folder) == keys[0]
    keys.append(key(folder, additional_config={"omni": {"activation": "int8"}}))
    for changes in ({"weights_digest": "other"}, {"activation": "int8"}, {"ignore": ["lm_head"]}):
        change(folder, **changes)
        keys.append(key(folder))
    assert len(set(keys)) == len(keys)


def test_supported_dtypes_and_name() -> None:
    from vllm_omni.quantization.cpu_int4 import CpuInt4Config
    from vllm_omni.quantization.options import Int4Options

    config = CpuInt4Config(Int4Options(1, "digest"))
    assert config.get_name() == "cpu_int4"
    assert set(config.get_supported_act_dtypes()) == {torch.bfloat16, torch.float16, torch.float32}
    with pytest.raises(ValueError, match="the checkpoint is not packed"):
        CpuInt4Config()
