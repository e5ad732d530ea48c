"""The torch operators: schemas, shapes without data, a portable kernel and a native one.

Importing this module defines ``vllm_omni::int4_linear`` and ``vllm_omni::int4_embedding`` on packed weights,
``vllm_omni::dense_linear`` and ``vllm_omni::dense_embedding`` on unquantized tables. The portable kernel
(:mod:`vllm_omni.portable`, which states what they compute and refuse) is registered for every device type;
the native library registers the CPU's, which takes precedence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from vllm_omni import portable
from vllm_omni.native import native

LINEAR_SCHEMA = "(Tensor x, Tensor packed, Tensor bias, int n, int k, int activation) -> Tensor"
EMBEDDING_SCHEMA = "(Tensor ids, Tensor packed, int n, int k, int dtype) -> Tensor"
DENSE_LINEAR_SCHEMA = "(Tensor x, Tensor weight, Tensor bias) -> Tensor"
DENSE_EMBEDDING_SCHEMA = "(Tensor ids, Tensor weight, int dtype) -> Tensor"

_log = logging.getLogger("vllm.omni_edge")


@dataclass(frozen=True)
class OpStatus:
    """Whether the operators run native kernels; if not, ``reason`` says why."""

    native: bool
    reason: str


_degraded: list[str] = []


def status() -> OpStatus:
    """How the operators registered so far run on the CPU."""
    return OpStatus(native=not _degraded, reason="; ".join(_degraded))


def linear_shape(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, n: int, k: int, activation: int
) -> torch.Tensor:
    """Shape and type of the linear operator's result."""
    torch._check(x.dim() >= 1, lambda: f"x: expected [..., {k}], got {list(x.shape)}")
    torch._check(x.shape[-1] == k, lambda: f"x: expected [..., {k}], got {list(x.shape)}")
    return x.new_empty((*x.shape[:-1], n))


def embedding_shape(ids: torch.Tensor, packed: torch.Tensor, n: int, k: int, dtype: int) -> torch.Tensor:
    """Shape and type of the embedding operator's result."""
    torch._check(dtype in portable.ROW_DTYPES, lambda: f"dtype: expected 0, 1 or 2, got {dtype}")
    return ids.new_empty((*ids.shape, k), dtype=portable.ROW_DTYPES[dtype])


def dense_linear_shape(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Shape and type of the dense linear operator's result."""
    torch._check(weight.dim() == 2, lambda: f"weight: expected [N, K], got {list(weight.shape)}")
    n, k = weight.shape
    torch._check(x.dim() >= 1, lambda: f"x: expected [..., {k}], got {list(x.shape)}")
    torch._check(x.shape[-1] == k, lambda: f"x: expected [..., {k}], got {list(x.shape)}")
    return x.new_empty((*x.shape[:-1], n))


def dense_embedding_shape(ids: torch.Tensor, weight: torch.Tensor, dtype: int) -> torch.Tensor:
    """Shape and type of the dense embedding operator's result."""
    torch._check(weight.dim() == 2, lambda: f"weight: expected [N, K], got {list(weight.shape)}")
    torch._check(dtype in portable.ROW_DTYPES, lambda: f"dtype: expected 0, 1 or 2, got {dtype}")
    return ids.new_empty((*ids.shape, weight.shape[1]), dtype=portable.ROW_DTYPES[dtype])


def _define(library: torch.library.Library, name: str, schema: str, kernel: Callable, fake: Callable) -> None:
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{library.ns}::{name}", fake, lib=library)


def _register_native(*names: str) -> None:
    """The native CPU kernels of ``names``; a refusal is one warning, and the portable kernel stays."""
    found = native()
    reason = found.reason
    if found.module is not None:
        lib_dir = Path(torch.__file__).parent / "lib"
        try:
            found.module.register_torch_ops(str(lib_dir), *names)
            return
        except RuntimeError as error:
            reason = str(error)
    if reason not in _degraded:
        _degraded.append(reason)
        _log.warning("int4 operators run the slow portable kernels: %s", reason)


# A registration lasts as long as its Library object.
_libraries: dict[str, torch.library.Library] = {}

_OPERATORS: tuple[tuple[str, str, Callable, Callable], ...] = (
    ("int4_linear", LINEAR_SCHEMA, portable.linear, linear_shape),
    ("int4_embedding", EMBEDDING_SCHEMA, portable.embedding, embedding_shape),
    ("dense_linear", DENSE_LINEAR_SCHEMA, portable.dense_linear, dense_linear_shape),
    ("dense_embedding", DENSE_EMBEDDING_SCHEMA, portable.dense_embedding, dense_embedding_shape),
)


def _register(namespace: str, prefix: str) -> None:
    native()  # refuses an instruction set that the machine lacks, before anything is defined
    library = _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    for name, schema, kernel, fake in _OPERATORS:
        _define(library, prefix + name, schema, kernel, fake)
    _register_native(*(f"{namespace}::{prefix}{name}" for name, *_ in _OPERATORS))


def register_vllm_ops() -> None:
    """Define ``vllm::cpu_int4_linear`` and so on: the same operators in the namespace of vLLM's own. Needs no
    vLLM; does nothing the second time."""
    if "vllm" not in _libraries:
        _register("vllm", "cpu_")


_register("vllm_omni", "")
