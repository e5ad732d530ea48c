"""Which GGUF tensor is which module of the Hugging Face model, by the ``gguf`` library's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gguf.tensor_mapping import get_tensor_name_map

from vllm_omni.checkpoints.gguf_config import ROPE_FACTORS_TENSOR, Architecture
from vllm_omni.checkpoints.gguf_source import GgufSource, GgufTensor
from vllm_omni.errors import FormatError

# vLLM joins these into one layer each. Their packed forms lie next to each other in the file, in this order,
# so that one view maps the whole layer; a group is packed whole or not at all.
FUSED_GROUPS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.gate_proj", "mlp.up_proj"),
)


@dataclass(frozen=True)
class ModuleTensors:
    """The tensors of one module, e.g. ``model.layers.0.self_attn.q_proj``."""

    module: str
    weight: GgufTensor
    bias: GgufTensor | None
    # Number of heads whose rows are interleaved in the file; 0 when the rows are in the model's order.
    interleaved_heads: int


def expected_modules(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """``(module, shape of its weight)`` of a decoder with gated MLP, in file order."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "self_attn.q_proj", (q, hidden)
        yield prefix + "self_attn.k_proj", (kv, hidden)
        yield prefix + "self_attn.v_proj", (kv, hidden)
        yield prefix + "self_attn.o_proj", (hidden, q)
        yield prefix + "mlp.gate_proj", (inner, hidden)
        yield prefix + "mlp.up_proj", (inner, hidden)
        yield prefix + "mlp.down_proj", (hidden, inner)
        yield prefix + "input_layernorm", (hidden,)
        yield prefix + "post_attention_layernorm", (hidden,)
    yield "model.norm", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head", (config["vocab_size"], hidden)


def model_tensors(
    source: GgufSource, architecture: Architecture, config: dict[str, Any]
) -> list[ModuleTensors]:
    """Every module with its tensors, in file order.

    Raises ``FormatError`` naming a tensor that is missing, has another shape than the metadata say, is a
    packed vector or bias, is left over, or breaks a fused group by being stored unpacked beside packed ones.
    Biases are exactly those that ``config`` gives the model: vLLM drops without a word a bias that it has no
    parameter for, and leaves a parameter unset that no tensor fills.
    """
    names = get_tensor_name_map(architecture.arch, config["num_hidden_layers"])
    unclaimed = dict(source.tensors)
    unclaimed.pop(ROPE_FACTORS_TENSOR, None)
    modules = []
    for module, shape in expected_modules(config):
        gguf_name = names.get_name(module)
        if gguf_name is None:
            raise FormatError(
                f"{source.path}: the gguf library knows no name for {module!r} in {source.architecture}"
            )
        weight = unclaimed.pop(f"{gguf_name}.weight", None)
        if weight is None:
            raise FormatError(f"{source.path}: tensor '{gguf_name}.weight' is missing")
        _expect(source, weight, shape)
        bias = unclaimed.pop(f"{gguf_name}.bias", None)
        _check_bias(source, config, module, f"{gguf_name}.bias", bias is not None)
        if bias is not None:
            _expect(source, bias, shape[:1])
        modules.append(ModuleTensors(module, weight, bias, _interleaved_heads(architecture, config, module)))
    if unclaimed:
        raise FormatError(
            f"{source.path}: tensor {next(iter(unclaimed))!r} has no place in a {source.architecture} model "
            f"({len(unclaimed)} such tensors)"
        )
    _check_fused_groups(source, modules)
    return modules


def _check_bias(source: GgufSource, config: dict[str, Any], module: str, name: str, found: bool) -> None:
    """One switch gives q, k, v and o of all layers a bias, one gate, up and down; nothing else has any."""
    expected, others = False, ""
    for block, switch, members in (
        (".self_attn.", "attention_bias", "attn_q, attn_k, attn_v and attn_output"),
        (".mlp.", "mlp_bias", "ffn_gate, ffn_up and ffn_down"),
    ):
        if block in module:
            expected, others = config[switch], f"a bias in {members} of every layer, or in none of them"
    if found != expected:
        state = "has no place in" if found else "is missing for"
        raise FormatError(
            f"{source.path}: tensor {name!r} {state} a {source.architecture} model: "
            f"expected {others or 'no bias here'}"
        )


def _interleaved_heads(architecture: Architecture, config: dict[str, Any], module: str) -> int:
    if not architecture.interleaved_rope:
        return 0
    if module.endswith(".q_proj"):
        return config["num_attention_heads"]
    if module.endswith(".k_proj"):
        return config["num_key_value_heads"]
    return 0


def _expect(source: GgufSource, tensor: GgufTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise FormatError(
            f"{source.path}: tensor {tensor.name!r} has shape {list(tensor.shape)}: expected {list(shape)}"
        )
    if len(shape) == 1 and tensor.packed:
        raise FormatError(
            f"{source.path}: vector {tensor.name!r} has type {tensor.type_name}: expected F32, F16 or BF16"
        )


def _check_fused_groups(source: GgufSource, modules: list[ModuleTensors]) -> None:
    by_name = {m.module: m for m in modules}
    for first in modules:
        for group in FUSED_GROUPS:
            if not first.module.endswith("." + group[0]):
                continue
            parent = first.module.removesuffix(group[0])
            for member in group[1:]:
                other = by_name[parent + member]
                _check_alike(source, first, other)


def _check_alike(source: GgufSource, first: ModuleTensors, other: ModuleTensors) -> None:
    a, b = first.weight, other.weight
    if a.packed != b.packed:
        raise FormatError(
            f"{source.path}: tensor {b.name!r} has type {b.type_name} "
            f"beside {a.name!r} of type {a.type_name}: expected all quantized or none"
        )
