"""What tensors of a checkpoint must be. A check raises :class:`FormatError`: tensor, expected and got."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vllm_omni.errors import FormatError

GROUP_MULTIPLE = 8


def described(tensor: torch.Tensor) -> str:
    """``int32 [4, 8]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def require_tensor(
    name: str, tensor: object, dtypes: Sequence[torch.dtype], shape: Sequence[int | str]
) -> torch.Tensor:
    """``tensor`` when it is on the CPU with one of ``dtypes`` and ``shape`` (a string is any length ≥ 1)."""
    wanted = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    expected = f"{wanted} [{', '.join(map(str, shape))}]"
    if not isinstance(tensor, torch.Tensor):
        raise FormatError(f"{name}: expected {expected}, got {type(tensor).__name__}")
    fits = tensor.dim() == len(shape) and all(
        got >= 1 if isinstance(want, str) else got == want
        for want, got in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype not in dtypes or not fits:
        raise FormatError(f"{name}: expected {expected}, got {described(tensor)}")
    if tensor.device.type != "cpu":
        raise FormatError(f"{name}: expected a tensor on the CPU, got one on {tensor.device}")
    return tensor.detach()


def require_bits(bits: object) -> int:
    """4 or 8."""
    if isinstance(bits, bool) or bits not in (4, 8):
        raise FormatError(f"bits: expected 4 or 8, got {bits!r}")
    return int(bits)


def require_group_size(group_size: object) -> int:
    """A positive multiple of 8, or −1 for one group per row."""
    ok = isinstance(group_size, int) and not isinstance(group_size, bool)
    if not ok or (group_size != -1 and (group_size < 1 or group_size % GROUP_MULTIPLE)):  # type: ignore[operator]
        raise FormatError(
            f"group_size: expected a positive multiple of {GROUP_MULTIPLE}, or -1 for one group per row, "
            f"got {group_size!r}"
        )
    return group_size  # type: ignore[return-value]


def groups_in(k: int, group_size: int) -> int:
    """Groups in a row of ``k`` columns; the last one may be short."""
    return 1 if group_size == -1 else -(-k // group_size)


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def stored_floats(name: str, values: torch.Tensor) -> torch.Tensor:
    """Finite scales or offsets in a 16-bit type, without a change of value.

    float16 and bfloat16 stay as they are; float32 is accepted only where it is exact in one of the two.
    """
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        where = (~finite).nonzero()[0].tolist()
        raise FormatError(f"{name}: expected finite values, got {values[tuple(where)].item()} at {where}")
    if values.dtype != torch.float32:
        return values.contiguous()
    for dtype in (torch.float16, torch.bfloat16):
        narrow = values.to(dtype)
        if torch.equal(narrow.float(), values):
            return narrow.contiguous()
    raise FormatError(
        f"{name}: expected float16, bfloat16, or float32 values that are exact in one of them, "
        "got float32 values that neither holds exactly"
    )
