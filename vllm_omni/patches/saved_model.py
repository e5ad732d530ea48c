"""``BundledAOTAutogradSerializableCallable.__getattr__``: a compiled model that vLLM saved can be loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_omni.patch import Patch, Proof, resolve

_TARGET = "torch._dynamo.aot_compile_types.BundledAOTAutogradSerializableCallable.__getattr__"
_METHOD = "finalize_loading"


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __getattr__(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if name != _METHOD:
                raise
            return nothing_to_finalize

    return __getattr__


def nothing_to_finalize(vllm_config: Any) -> None:
    """Of vLLM's own backend this starts the backend and loads what it compiled. Inductor's function came
    whole out of the file."""


def prove() -> Proof:
    """Ask a loaded function, as torch wraps it, for the method that vLLM calls."""

    def compiled() -> None: ...

    compiled.serialize = lambda: b""  # type: ignore[attr-defined]
    loaded = resolve(_TARGET.rpartition(".")[0])(compiled)
    was_applied = PATCH.is_applied()
    has = {}
    try:
        for patched in (False, True):
            PATCH.apply() if patched else PATCH.undo()
            has[patched] = callable(getattr(loaded, _METHOD, None))
    finally:
        PATCH.apply() if was_applied else PATCH.undo()
    return Proof(
        needed=not has[False],
        effective=was_applied and has[True],
        detail=f"a loaded function has {_METHOD}: {has[False]} before, {has[True]} with the patch",
    )


PATCH = Patch(
    target=_TARGET,
    stage="engine",
    why=(
        "vLLM calls finalize_loading on the compiled model that it saved and loads again. The function of "
        "inductor, the CPU's compiler, has none; the error counts as a cache miss: every start compiles anew."
    ),
    how="Where the loaded function has no finalize_loading, answer with one that does nothing.",
    upstream="vllm/compilation/decorators.py (no report found)",
    remove_when="vLLM asks only its own backend's functions to finalize",
    tested_versions="==0.28.0",
    source="vllm.compilation.decorators._try_load_aot_compiled_fn",
    source_sha256="b3f9cf5105da6eaa982c13407d28f4842f454e0f17818a84fc8db4556c31084f",
    wrap=wrap,
    prove=prove,
)
