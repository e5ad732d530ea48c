"""Tiny random checkpoints in our packed format, and the same weights as a transformers model.

The packed weights are the truth: the reference is built from what they dequantize to, so the two may differ
by rounding of activations only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from vllm_omni import int4
from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec

# 500 is not a multiple of 64: vLLM pads the vocabulary, the packed table is not padded.
VOCABULARY = 500
HIDDEN = 128
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
INTERMEDIATE = 352
LAYERS = 2

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_ST_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass
class TinyCheckpoint:
    """What to write. ``bits_of`` gives the bits of a module, ``drop`` leaves tensors out of the folder."""

    model_type: str = "llama"
    dtype: torch.dtype = torch.float32
    tied: bool = True
    bits_of: Callable[[str], int] = lambda module: 4
    symmetric: bool = True
    group_size: int = 32
    ignore: tuple[str, ...] = ()
    fused: bool = False
    adjacent: bool = True
    drop: tuple[str, ...] = ()
    activation: str | None = None
    quantization: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def config(self) -> PretrainedConfig:
        return AutoConfig.for_model(
            self.model_type,
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            max_position_embeddings=512,
            tie_word_embeddings=self.tied,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=None,
        )

    def write(self, folder: Path) -> PreTrainedModel:
        """Write the folder and return the fp32 reference with exactly the same weights."""
        torch.manual_seed(self.seed)
        config = self.config()
        config.architectures = [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[self.model_type]]
        reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        packed: dict[str, int4.PackedWeight] = {}
        plain: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                # Random norms and biases too: all ones and all zeros hide what is never loaded.
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if "norm" in name else 0.0))
                module = name.removesuffix(".weight")
                if parameter.ndim == 2 and not self._ignores(module):
                    packed[module] = int4.quantize(
                        parameter.detach(),
                        group_size=self.group_size,
                        bits=self.bits_of(module),
                        symmetric=self.symmetric,
                    )
                    parameter.copy_(packed[module].dequantize())
                else:
                    stored = parameter.detach().to(self.dtype)
                    plain[name] = stored.clone()
                    parameter.copy_(stored.to(torch.float32))
        folder.mkdir(parents=True)
        self._write_weights(folder, self._stored(packed), plain)
        config.dtype = self.dtype
        text = json.loads(config.to_json_string(use_diff=False))
        text["quantization_config"] = self._quantization(packed)
        (folder / "config.json").write_text(json.dumps(text, indent=1))
        write_tokenizer(folder)
        return reference

    def _ignores(self, module: str) -> bool:
        return any(module == entry or module.endswith("." + entry) for entry in self.ignore)

    def _stored(self, packed: dict[str, int4.PackedWeight]) -> dict[str, int4.PackedWeight]:
        """In the order of the file: q, k, v and gate, up adjacent; as one tensor each with ``fused``."""
        ordered: dict[str, int4.PackedWeight] = {}
        for module in list(packed):
            parent, _, name = module.rpartition(".")
            group = next(((fused, parts) for fused, parts in _FUSED.items() if name in parts), None)
            if group is None:
                ordered[module] = packed[module]
            elif self.fused:
                weights = [packed[f"{parent}.{part}"] for part in group[1]]
                ordered[f"{parent}.{group[0]}"] = int4.PackedWeight.concat(weights)
            else:
                for part in group[1]:
                    ordered[f"{parent}.{part}"] = packed[f"{parent}.{part}"]
        if not self.adjacent:
            ordered = dict(sorted(ordered.items(), reverse=True))
        return {f"{module}.weight_packed": w for module, w in ordered.items() if module not in self.drop}

    def _quantization(self, packed: dict[str, int4.PackedWeight]) -> dict[str, Any]:
        digest = hashlib.sha256(b"".join(weight.to_bytes() for weight in packed.values())).hexdigest()
        config: dict[str, Any] = {"quant_method": "cpu_int4", "layout_version": 1, "weights_digest": digest}
        config["ignore"] = list(self.ignore)
        if self.activation is not None:
            config["activation"] = self.activation
        return config | self.quantization

    def _write_weights(
        self, folder: Path, packed: dict[str, int4.PackedWeight], plain: dict[str, torch.Tensor]
    ) -> None:
        weight_map: dict[str, str] = {}
        first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
        specs = [TensorSpec(name, "U8", (weight.nbytes,)) for name, weight in packed.items()]
        with SafetensorsWriter(folder / first, specs, aligned=True) as writer:
            for name, weight in packed.items():
                writer.write(name, weight.to_bytes())
                weight_map[name] = first
        plain = {name: tensor for name, tensor in plain.items() if name not in self.drop}
        specs = [TensorSpec(name, _ST_DTYPES[t.dtype], tuple(t.shape)) for name, t in plain.items()]
        with SafetensorsWriter(folder / second, specs) as writer:
            for name, tensor in plain.items():
                writer.write(name, tensor.contiguous().view(torch.uint8).numpy().tobytes())
                weight_map[name] = second
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_tokenizer(folder: Path) -> None:
    """One token per byte, after two special ones: enough for an endpoint to answer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {letter: 2 + i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    fast.save_pretrained(folder)


def reference_logprobs(reference: PreTrainedModel, tokens: Iterable[int]) -> torch.Tensor:
    """Log-probabilities of the next token after each position: ``[tokens, vocabulary]``, fp32."""
    with torch.no_grad():
        logits = reference(torch.tensor([list(tokens)])).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)
