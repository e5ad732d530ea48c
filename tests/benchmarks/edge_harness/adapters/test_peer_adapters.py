"""Command lines of the peers' adapters, what they refuse, and what they tell of a model's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.edge_harness.adapters import build as building
from benchmarks.edge_harness.adapters import onnx_facts, openvino_facts
from benchmarks.edge_harness.adapters.base import Adapter
from benchmarks.edge_harness.adapters.gguf_facts import bits_of, gguf_facts, layer_type, matrix_names
from benchmarks.edge_harness.adapters.recipes import Recipe, recipe
from benchmarks.edge_harness.adapters.registry import adapter
from benchmarks.edge_harness.adapters.workload import Work
from benchmarks.edge_harness.spec import Arm
from tests.benchmarks.edge_harness.adapters.gguf_file import write_gguf
from vllm_omni.errors import OmniError

GGML = ("llama.cpp", "ik_llama.cpp")
ENVIRONMENTS = {"onnxruntime-genai": "genai_config.json", "openvino-genai": "openvino_model.xml"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def built(name: str, packages: dict[str, str] | None = None) -> Recipe:
    made = recipe(name)
    made.folder.mkdir(parents=True)
    building.finish(made, packages or {})
    return made


def arm(name: str, model: Path, **fields: object) -> Arm:
    return Arm(tag="a", adapter=name, model=str(model), **fields)


def value_after(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def model_for(name: str, folder: Path) -> Path:
    if name in GGML:
        return write_gguf(folder / "m.gguf")
    model = folder / "m"
    model.mkdir()
    (model / ENVIRONMENTS[name]).write_text("{}")
    (model / "weights.bin").write_bytes(b"weights")
    return model


@pytest.mark.parametrize("name", [*GGML, *ENVIRONMENTS])
def test_a_peer_that_is_not_built_says_how_to_build_it(name: str, tmp_path: Path):
    reason = adapter(name).unavailable(arm(name, model_for(name, tmp_path)))
    assert reason == f"{name} is not built: run `make peers PEERS={name}`"


@pytest.mark.parametrize("name", [*GGML, *ENVIRONMENTS])
def test_a_built_peer_with_its_model_can_run(name: str, tmp_path: Path):
    built(name)
    assert adapter(name).unavailable(arm(name, model_for(name, tmp_path))) is None


@pytest.mark.parametrize("name", [*GGML, *ENVIRONMENTS])
def test_another_model_format_is_refused_with_the_way_to_the_right_one(name: str, tmp_path: Path):
    built(name)
    folder = tmp_path / "hf"
    folder.mkdir()
    reason = adapter(name).unavailable(arm(name, folder))
    assert reason is not None
    assert reason.startswith("hf: ")
    assert "GGUF" in reason or f"peers convert {name}" in reason


@pytest.mark.parametrize("name", [*GGML, *ENVIRONMENTS])
def test_an_option_that_does_not_exist_is_an_error_not_a_reason(name: str, tmp_path: Path):
    with pytest.raises(OmniError, match=r"options\.speed"):
        adapter(name).unavailable(arm(name, tmp_path, options={"speed": 1}))


@pytest.mark.parametrize("name", GGML)
def test_the_ggml_command_carries_workload_options_and_facts(name: str, tmp_path: Path):
    made = built(name)
    model = write_gguf(tmp_path / "m.gguf")
    options = {"threads": 3, "ubatch_tokens": 256}
    one = arm(name, model, options=options, workload={"prompt_tokens": 7, "depth": 9})
    command = adapter(name).command(one)
    assert value_after(command, "--engine") == name
    assert value_after(command, "--threads") == "3"
    assert Work.from_json(value_after(command, "--workload")) == Work(prompt_tokens=7, depth=9)
    assert json.loads(value_after(command, "--options")) == {"ubatch_tokens": 256}
    facts = json.loads(value_after(command, "--facts"))
    assert facts["peer"]["build_flags"] == list(made.flags)
    assert facts["model"]["id"] == "m.gguf"
    assert "--threads" not in adapter(name).command(arm(name, model))


def test_each_binding_is_told_its_library_in_its_own_way(tmp_path: Path):
    model = tmp_path / "m.gguf"
    llama = adapter("llama.cpp").environment(arm("llama.cpp", model))
    fork = adapter("ik_llama.cpp").environment(arm("ik_llama.cpp", model))
    assert llama["LLAMA_CPP_LIB_PATH"] == str(recipe("llama.cpp").build_folder / "bin")
    assert fork["IK_LLAMA_CPP_LIB_PATH"] == str(recipe("ik_llama.cpp").build_folder / "src/libllama.so")
    assert (Path(llama["PYTHONPATH"]) / "benchmarks" / "edge_harness").is_dir()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_runs_its_own_python_with_what_the_conversion_said(name: str, tmp_path: Path):
    made = built(name, {"engine": "1.2"})
    model = model_for(name, tmp_path)
    said = {"ran": {"head_bits": 8}, "file_weights": {"k": 1}, "quantization": "int4", "group_size": 32}
    (model / "peer_facts.json").write_text(json.dumps(said))
    command = adapter(name).command(arm(name, model))
    assert command[0] == str(made.python)
    facts = json.loads(value_after(command, "--facts"))
    assert "kernels" not in facts
    assert facts["notes"][0] == "kernels: not observed; weights of the file: k 1"
    assert facts["ran"] == {"head_bits": 8, "source": "file"}
    options = json.loads(value_after(command, "--options"))
    assert options == ({"dynamic_quantization_group_size": 32} if name == "openvino-genai" else {})
    assert facts["model"]["head_bits"] == 8
    assert facts["model"]["quantization"] == "int4"
    assert facts["peer"]["build_flags"] == ["engine==1.2"]


def test_openvino_refuses_a_depth(tmp_path: Path):
    built("openvino-genai")
    model = model_for("openvino-genai", tmp_path)
    reason = adapter("openvino-genai").unavailable(arm("openvino-genai", model, workload={"depth": 512}))
    assert reason is not None
    assert "expected workload.depth 0, found 512" in reason


def test_onnxruntime_refuses_a_depth_of_a_batch_only(tmp_path: Path):
    built("onnxruntime-genai")
    model = model_for("onnxruntime-genai", tmp_path)

    def reason(**workload: int) -> str | None:
        return adapter("onnxruntime-genai").unavailable(arm("onnxruntime-genai", model, workload=workload))

    assert reason(depth=64) is None
    assert reason(batch=2) is None
    assert reason(depth=64, batch=2) is not None


def test_the_fork_takes_batches_without_flash_attention_only(tmp_path: Path):
    built("ik_llama.cpp")
    model = write_gguf(tmp_path / "m.gguf")

    def reason(**fields: object) -> str | None:
        return adapter("ik_llama.cpp").unavailable(arm("ik_llama.cpp", model, **fields))

    assert reason() is None
    assert 'options.flash_attention to "off"' in str(reason(workload={"batch": 2}))
    assert reason(workload={"batch": 2}, options={"flash_attention": "off"}) is None


def test_zentorch_is_refused_by_the_processor_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    zen: Adapter = adapter("vllm-zentorch")
    real = building.check_processor
    cpuinfo = {"text": "vendor_id\t: GenuineIntel\n"}
    monkeypatch.setattr(
        "benchmarks.edge_harness.adapters.vllm_zentorch.check_processor",
        lambda made: real(made, cpuinfo["text"]),
    )
    one = arm("vllm-zentorch", tmp_path)
    refused = zen.unavailable(one)
    assert refused is not None
    assert "AuthenticAMD processors only" in refused
    cpuinfo["text"] = "vendor_id\t: AuthenticAMD\n"
    assert zen.unavailable(one) == "vllm-zentorch is not built: run `make peers PEERS=vllm-zentorch`"
    built("vllm-zentorch")
    assert "config.json" in str(zen.unavailable(one))
    (tmp_path / "config.json").write_text("{}")
    assert zen.unavailable(one) is None
    command = zen.command(one)
    assert command[0] == str(recipe("vllm-zentorch").python)
    assert "--stock" in command


@pytest.mark.parametrize(("head", "kind", "bits"), [(False, "Q8_0", 8), (True, "Q6_K", 6)])
def test_a_gguf_file_tells_its_types_and_its_head(tmp_path: Path, head: bool, kind: str, bits: int):
    facts = gguf_facts(write_gguf(tmp_path / "m.gguf", head=head))
    assert facts["ran"] == {"weight_bits": 4, "head_bits": bits, "source": "file"}
    names = matrix_names(tmp_path / "m.gguf")
    assert names["patterns"][-1] == ("output.weight" if head else "token_embd.weight")
    assert (names["patterns"][0], names["blocks"]) == ("blk.#.attn_q.weight", 1)
    assert layer_type(tmp_path / "m.gguf") == "Q4_1"
    assert facts["model"]["head_bits"] == bits
    assert facts["model"]["quantization"] == "Q4_1"
    assert facts["file_tensor_types"] == {"Q4_1": 2, kind: 1}
    # 20 bytes a block of 32 in Q4_1, 34 in Q8_0; a table beside a head of its own is not read.
    assert facts["weight_bytes_per_token"] == 2 * 64 * 20 + (2 * 210 if head else 64 * 34)


def test_what_is_no_gguf_file_is_refused(tmp_path: Path):
    other = tmp_path / "m.gguf"
    with pytest.raises(OmniError, match=r"m\.gguf: expected a GGUF file"):
        gguf_facts(other)
    other.write_bytes(b"not one at all, but long enough to be read as a header")
    with pytest.raises(OmniError, match=r"m\.gguf: expected a GGUF file"):
        gguf_facts(other)


@pytest.mark.parametrize(
    ("kind", "bits"), [("Q4_K", 4), ("IQ4_XS", 4), ("BF16", 16), ("Q8_0", 8), ("TQ1_0", 1)]
)
def test_bits_are_in_the_name_of_a_type(kind: str, bits: int):
    assert bits_of(kind) == bits


def test_onnx_nodes_are_counted_by_what_they_compute():
    packed = {"bits": 4, "block_size": 32, "accuracy_level": 4}
    layer = ("MatMulNBits", "/model/layers.0/q", packed, ["x", "q", "q_scales"])
    head = ("MatMulNBits", "/lm_head", packed | {"bits": 8}, ["x", "table"])
    nodes = [layer, layer, head, ("Add", "x", {}, ["other"])]
    sizes = {"q": 16, "q_scales": 2, "table": 64, "other": 1000}
    found = onnx_facts.facts(nodes, sizes, {"float32"})
    assert found["ran"] == {"weight_bits": 4, "head_bits": 8, "kv_dtype": "float32"}
    assert found["file_weights"]["MatMulNBits bits=4 block=32 accuracy_level=4"] == 2
    assert found["weight_bytes_per_token"] == 82
    plain = onnx_facts.facts([("MatMul", "/lm_head/MatMul", {}, [])], {}, set())
    assert "head_bits" not in plain["ran"]


def test_openvino_constants_are_counted_without_scales():
    constants = [
        ("model.layers.0.q_proj.weight", "i4", [64, 2, 32]),
        ("model.layers.0.q_proj.weight/scale", "f16", [64, 2, 1]),
        ("model.embed_tokens.weight", "u8", [100, 64]),
        ("model.norm", "f32", [64]),
        ("model.layers.0.norm", "f32", [1, 1, 64]),
    ]
    found = openvino_facts.facts(constants)
    assert found["file_weights"] == {"i4": 1, "u8": 1}
    assert found["ran"] == {"weight_bits": 4, "head_bits": 8}
    assert found["group_size"] == 32
    # 4096 weights of 4 bits, their 128 scales of 16, and a table that is the head too.
    assert found["weight_bytes_per_token"] == 64 * 2 * 32 // 2 + 64 * 2 * 2 + 100 * 64


def test_the_fork_repacks_q4_0_unless_told_otherwise(tmp_path: Path):
    built("ik_llama.cpp")
    fork = adapter("ik_llama.cpp")

    def options(layers: str, **given: bool) -> dict:
        model = write_gguf(tmp_path / f"{layers}.gguf", layers=layers)
        return json.loads(value_after(fork.command(arm("ik_llama.cpp", model, options=given)), "--options"))

    assert options("Q4_0") == {"repack": True}
    assert options("Q4_1") == {}
    assert options("Q4_0", repack=False) == {"repack": False}
