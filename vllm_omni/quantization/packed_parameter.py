"""A parameter whose value is packed bytes: filled shard by shard, by reference.

vLLM's loaders copy a checkpoint tensor into a preallocated parameter. Packed weights are used as they lie in
the mapped file, so this parameter starts empty and its loader *replaces* the data: pages stay mapped, shared
between processes and evictable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from vllm_omni.errors import FormatError
from vllm_omni.int4 import PackedWeight

# Permutations are read as 32-bit words.
ALIGNMENT_BYTES = 4

ShardId = str | int | None


@dataclass(frozen=True)
class Shard:
    """One part of a fused layer (q, k, v; gate, up), or the whole of a plain one.

    ``ident`` is what vLLM's loader passes for it, ``tensor`` the name of the checkpoint's tensor, ``n`` its
    outputs.
    """

    ident: ShardId
    tensor: str
    n: int


class PackedShards:
    """Collects the shards of one layer, in any order, and gives the parameter its value when the last one
    came.

    Raises ``FormatError`` (a ``ValueError``) naming the tensor when a shard is not packed bytes, is damaged,
    or has other dimensions than the layer.
    """

    def __init__(
        self, layer: str, shards: Sequence[Shard], k: int, origin: Callable[[str], str | None] | None = None
    ) -> None:
        self.layer = layer
        self.shards = tuple(shards)
        self.k = k
        self.bits: tuple[int, ...] = ()
        self._origin = origin
        self._loaded: dict[int, torch.Tensor] = {}
        self._filled = False

    @property
    def n(self) -> int:
        return sum(shard.n for shard in self.shards)

    def parameter(self) -> torch.nn.Parameter:
        """A new, empty parameter that this object fills through its ``weight_loader``."""
        parameter = torch.nn.Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
        parameter.weight_loader = self.load
        parameter.packed_shards = self
        return parameter

    def load(
        self,
        parameter: torch.nn.Parameter,
        loaded: torch.Tensor,
        shard_id: ShardId | tuple[int, ...] = None,
    ) -> None:
        """vLLM's ``weight_loader``. ``shard_id`` is ``None`` for a whole layer, also one that is stored
        fused."""
        first, last = self._span(shard_id)
        covered = self.shards[first:last]
        self._check(loaded, covered)
        if self._filled:
            # Weights are being loaded anew: the old value goes when the first shard of the new one comes.
            self._filled = False
            self._loaded.clear()
        for position in range(first, last):
            self._loaded.pop(position, None)
        self._loaded[first] = loaded
        if sum(shard.n for shard in self._loaded_shards()) == self.n:
            parts = [self._loaded[position] for position in sorted(self._loaded)]
            parameter.data = join(parts)
            self.bits = tuple(segment.bits for segment in PackedWeight(parameter.data).segments)
            self._filled = True
            self._loaded.clear()

    def prove_filled(self) -> None:
        """Raise ``FormatError`` naming the layer and each tensor that never came."""
        if self._filled:
            return
        came = {shard.ident for shard in self._loaded_shards()}
        missing = dict.fromkeys(shard.tensor for shard in self.shards if shard.ident not in came)
        raise FormatError(
            f"{self.layer}: the checkpoint holds no {', '.join(missing)}: {len(came)} of the layer's "
            f"{len(self.shards)} part(s) came"
        )

    def _span(self, shard_id: ShardId | tuple[int, ...]) -> tuple[int, int]:
        if shard_id is None:
            return 0, len(self.shards)
        idents = [shard.ident for shard in self.shards]
        wanted = shard_id if isinstance(shard_id, tuple) else (shard_id,)
        try:
            positions = [idents.index(ident) for ident in wanted]
        except ValueError:
            raise FormatError(f"{self.layer}: no shard {shard_id!r}, expected one of {idents}") from None
        return positions[0], positions[-1] + 1

    def _loaded_shards(self) -> list[Shard]:
        """The shards that came; a tensor that covers several stands at the position of its first."""
        shards: list[Shard] = []
        for position, tensor in self._loaded.items():
            n = sum(segment.n for segment in PackedWeight(tensor).segments)
            while n > 0:
                shards.append(self.shards[position])
                n -= self.shards[position].n
                position += 1
        return shards

    def _check(self, loaded: torch.Tensor, covered: Sequence[Shard]) -> None:
        name = " + ".join(dict.fromkeys(shard.tensor for shard in covered))
        origin = self._origin(covered[0].tensor) if self._origin else None
        where = f"{origin}: tensor {name!r}" if origin else f"tensor {name!r}"
        if loaded.dtype != torch.uint8 or loaded.ndim != 1:
            raise FormatError(
                f"{where}: expected packed bytes (uint8, one dimension), found {loaded.dtype} "
                f"{list(loaded.shape)}"
            )
        try:
            weight = PackedWeight(loaded)
            # Reads every byte once (more than 10 GB/s), which the first forward pass would fault in anyway.
            weight.validate(verify=True)
            segments = weight.segments
        except ValueError as error:
            raise FormatError(f"{where}: {error}") from error
        n, k = sum(segment.n for segment in segments), segments[0].k
        expected = sum(shard.n for shard in covered)
        if (n, k) != (expected, self.k):
            raise FormatError(f"{where}: expected {expected} outputs of {self.k} inputs, found {n} of {k}")


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts as one tensor: a view of the same memory where they lie back to back, else one copy.

    A safetensors file gives each tensor a storage of its own over one mapping, so a view within *one* storage
    cannot span them; the view here is made over the addresses and keeps every part alive.
    """
    if any(part.data_ptr() % ALIGNMENT_BYTES for part in parts):
        # A file of another writer: the kernels read words, so its bytes move to where words may be read.
        return torch.cat(list(parts))
    if len(parts) == 1:
        return parts[0]
    adjacent = all(left.data_ptr() + left.numel() == right.data_ptr() for left, right in pairwise(parts))
    if not adjacent:
        return torch.cat(list(parts))
    # Each part's bytes are valid while the part lives, and the parts leave no gap: so is the whole range.
    window = (ctypes.c_uint8 * sum(part.numel() for part in parts)).from_address(parts[0].data_ptr())
    window.parts = list(parts)  # the tensor below holds `window`, `window` holds the parts
    return torch.frombuffer(window, dtype=torch.uint8)
