"""``DefaultModelLoader.load_weights``: every parameter of a ``cpu_int4`` model is proven to have come."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_omni.errors import FormatError
from vllm_omni.patch import WRAPPED_ATTRIBUTE, Patch, Proof, resolve
from vllm_omni.quantization.options import METHOD_NAME

_TARGET = "vllm.model_executor.model_loader.default_loader.DefaultModelLoader.load_weights"


def wrap(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        if model_config.quantization == METHOD_NAME:
            # vLLM's own switch and method of this check; the method is replaced because it passes over
            # every module that has a quantization method, which is where the weights are.
            self.enable_weights_track = True
            self.track_weights_loading = prove_every_parameter_came
        original(self, model, model_config)

    return load_weights


def prove_every_parameter_came(model: Any, loaded: set[str] | None) -> None:
    """Raise ``FormatError`` naming the parameters that no checkpoint tensor filled.

    A parameter with several names (a tied head) came when it came under one of them. ``loaded`` is ``None``
    for models that do not say what they loaded.
    """
    if loaded is None:
        return
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    missing = [aliases[0] for aliases in names.values() if loaded.isdisjoint(aliases)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise FormatError(
            f"the checkpoint fills no {', '.join(missing[:3])}{more}: every parameter must come from it"
        )


def prove() -> Proof:
    """Let the loader load nothing into a model of one parameter, and see whether it objects."""
    import torch

    class LoadsNothing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(1), requires_grad=False)

        def load_weights(self, weights: Any) -> set[str]:
            return set()

    class Int4ModelConfig:
        quantization = METHOD_NAME
        is_moe = False

    loader_class = resolve(_TARGET.rpartition(".")[0])

    def objects(load: Callable[..., None]) -> bool:
        loader = loader_class.__new__(loader_class)
        loader.enable_weights_track = None
        loader.counter_before_loading_weights = 0.0
        loader.get_all_weights = lambda *_: iter(())
        loader._init_ep_weight_filter = lambda *_: None
        try:
            load(loader, LoadsNothing(), Int4ModelConfig())
        except ValueError:
            return True
        return False

    current = loader_class.load_weights
    original = getattr(current, WRAPPED_ATTRIBUTE, current)
    before, after = objects(original), objects(current)
    return Proof(
        not before,
        after and current is not original,
        f"a parameter that never came: refused {before} before, {after} now",
    )


PATCH = Patch(
    target=_TARGET,
    stage="engine",
    why=(
        "vLLM switches its check for parameters that no tensor filled off under quantization; uninitialised "
        "memory would be served."
    ),
    how="For a cpu_int4 model, switch the check on, with one that passes over no module; call the original.",
    upstream="vllm/model_executor/model_loader/default_loader.py (no report found)",
    remove_when="vLLM checks every parameter of a quantized model",
    tested_versions="==0.28.0",
    source=_TARGET,
    source_sha256="3b75b4578248dbd177af43ac84d332b09b12aa6b0f69691a0eca9d3f487c9f49",
    wrap=wrap,
    prove=prove,
)
