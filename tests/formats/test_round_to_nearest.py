from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_omni import int4, layout
from vllm_omni.formats import round_to_nearest


def pieces(packed: int4.PackedWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K], and scales and zero-points spread over columns, all float64."""
    segment = packed.segments[0]
    group_of = torch.arange(segment.k) // segment.group_columns
    codes = layout.codes_of(packed.data, segment, slice(0, segment.panels)).double()
    scales = layout.scales_of(packed.data, segment).double()[:, group_of]
    zeros = layout.zeros_of(packed.data, segment)
    center = torch.full_like(scales, 2.0 ** (segment.bits - 1))
    return codes, scales, center if zeros is None else zeros.double()[:, group_of]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("n", "k", "group_size"), [(1, 64, 32), (100, 80, 32), (17, 75, -1), (48, 256, 128)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_code_is_the_nearest(dtype, n: int, k: int, group_size: int, bits: int, symmetric: bool):
    torch.manual_seed(n + k)
    weight = (torch.randn(n, k) * 0.05).to(dtype)
    packed = int4.quantize(weight, group_size=group_size, bits=bits, symmetric=symmetric)
    assert (packed.shape, packed.bits, packed.group_size) == ((n, k), bits, group_size)
    assert packed.segments[0].zero_kind == ("none" if symmetric else "u8")
    codes, scales, zeros = pieces(packed)
    error = (scales * (codes - zeros) - weight.double()).abs()
    for other in (codes - 1, codes + 1):
        allowed = (other >= 0) & (other < 2**bits)
        other_error = (scales * (other - zeros) - weight.double()).abs()
        # Half a unit in the last place of the fp32 quotient: an exact tie may go either way.
        assert bool((error <= other_error * (1 + 1e-5))[allowed].all())
    # The range is used: no weight is further off than half a step, but for the rounded zero-point.
    assert bool((error <= scales * (0.51 if symmetric else 1.01)).all())


def test_scales_are_rounded_before_codes_are_chosen():
    """0.1 / 7 is not exact in float16; codes are nearest under the stored scale, not under the exact one."""
    rng = np.random.default_rng(3)
    weight = torch.from_numpy(rng.uniform(-0.1, 0.1, (64, 128)).astype(np.float32))
    codes, scales, zeros = pieces(int4.quantize(weight, group_size=128, bits=8))
    best = torch.round(weight.double() / scales).clamp(-128, 127)
    assert (codes - zeros - best).abs().sum() == 0


def test_groups_of_zeros_and_short_groups():
    weight = torch.zeros(5, 40)
    weight[1, 39] = -3.0
    for symmetric in (True, False):
        packed = int4.quantize(weight, group_size=32, symmetric=symmetric)
        torch.testing.assert_close(packed.dequantize(), weight, rtol=1e-3, atol=0)


@pytest.mark.parametrize(("factor", "scale_type"), [(1.0, "f16"), (1e-6, "bf16"), (1e8, "bf16")])
def test_the_scale_type_follows_the_range(factor: float, scale_type: str):
    weight = torch.linspace(-1, 1, 64).repeat(2, 1) * factor
    packed = int4.quantize(weight, group_size=32, bits=8)
    assert packed.segments[0].scale_type == scale_type
    assert (packed.dequantize() - weight).abs().max() <= 0.01 * factor


@pytest.mark.parametrize(
    ("weight", "arguments", "message"),
    [
        (torch.tensor([[1.0, float("nan")]]), {}, r"weight: expected finite values, got nan at \[0, 1\]"),
        (torch.tensor([[1.0], [float("-inf")]]), {}, r"weight: expected finite values, got -inf at \[1, 0\]"),
        (torch.ones(4, dtype=torch.float32), {}, r"weight: expected .*\[N, K\], got float32 \[4\]"),
        (torch.ones(4, 4, dtype=torch.int32), {}, "weight: expected .*, got int32"),
        (torch.ones(0, 4), {}, r"weight: .*got float32 \[0, 4\]"),
        (torch.ones(4, 8), {"bits": 2}, "bits: expected 4 or 8, got 2"),
        (torch.ones(4, 8), {"group_size": 4}, "group_size: .* got 4"),
    ],
)
def test_bad_input_is_named(weight: torch.Tensor, arguments: dict, message: str):
    with pytest.raises(int4.FormatError, match=message):
        int4.quantize(weight, **arguments)


def test_scales_can_be_exact_in_bfloat16():
    """An engine that keeps scales in bfloat16 then has the same weights; the codes follow those scales."""
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(0)) * 0.02
    arguments = {"group_size": 64, "bits": 4, "symmetric": True}
    free = round_to_nearest.quantize(weight, **arguments)
    exact = round_to_nearest.quantize(weight, **arguments, scales_exact_in_bfloat16=True)
    assert exact.scales.dtype == torch.float16
    assert torch.equal(exact.scales.bfloat16().half(), exact.scales)
    assert not torch.equal(free.scales.bfloat16().half(), free.scales)
    step = exact.scales.float().repeat_interleave(64, dim=1)
    nearest = (weight / step).round().clamp(-8, 7) + 8
    assert torch.equal(exact.codes.float(), nearest)
