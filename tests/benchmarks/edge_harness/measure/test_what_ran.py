"""Bits and kernels from what was observed: a layer or a head that fell back shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.edge_harness.measure.op_times import OpTime
from benchmarks.edge_harness.measure.what_ran import Seen, ran_of

OURS = OpTime("vllm_omni_edge::cpu_int4_linear", "gemm", 5.0, 9)
ATTENTION = OpTime("_C::cpu_attention_with_kv_cache", "attention", 1.0, 2)


@dataclass(frozen=True)
class Counts:
    kernel: str
    bits: int
    layers: int
    untracked_calls: int = 0


def plain(calls: int, name: str = "aten::mm") -> OpTime:
    return OpTime(name, "gemm", 1.0, calls)


def counts(*rows: Counts) -> dict[str, Counts]:
    return {row.kernel: row for row in rows}


LAYERS = counts(Counts("avx512-q4", 4, 8), Counts("rows-q8", 8, 1), Counts("avx512-q8", 8, 1))
HEAD = counts(Counts("avx512-q8", 8, 1))


def seen(**what: Any) -> Seen:
    given = {"ours": LAYERS, "head_ours": HEAD, "step_rows": [OURS, ATTENTION], "head_rows": [OURS]}
    return Seen(**(given | {"dtype": "bfloat16"} | what))


def test_all_of_it_is_ours() -> None:
    ran, notes = ran_of(seen())
    assert ran == {"weight_bits": 4, "head_bits": 8, "head_kernel": "avx512-q8"}
    assert notes == []


def test_a_head_that_fell_back() -> None:
    ours = counts(Counts("avx512-q4", 4, 8), Counts("rows-q8", 8, 1))
    ran, _ = ran_of(seen(ours=ours, head_ours={}, step_rows=[OURS, plain(1)], head_rows=[plain(1)]))
    assert ran == {"weight_bits": 4, "head_bits": 16, "head_kernel": "aten::mm"}


def test_a_layer_that_fell_back() -> None:
    ran, _ = ran_of(seen(step_rows=[OURS, plain(1)]))
    assert ran["weight_bits"] == "4+16"
    assert ran["head_bits"] == 8


def test_a_layer_and_the_head_fell_back_to_the_same_operator() -> None:
    ours = counts(Counts("avx512-q4", 4, 7))
    ran, _ = ran_of(seen(ours=ours, head_ours={}, step_rows=[OURS, plain(2)], head_rows=[plain(1)]))
    assert (ran["weight_bits"], ran["head_bits"]) == ("4+16", 16)


def test_operators_that_only_lead_to_another_one_do_not_count() -> None:
    ran, _ = ran_of(seen(step_rows=[OURS, plain(3, "aten::linear")]))
    assert ran["weight_bits"] == 4


@pytest.mark.parametrize(("operator", "bits"), [("aten::mm", 16), ("_C::onednn_mm", 16)])
def test_plain_weights(operator: str, bits: int) -> None:
    rows = [plain(9, operator), ATTENTION]
    ran, notes = ran_of(seen(ours={}, head_ours={}, step_rows=rows, head_rows=[plain(1, operator)]))
    assert ran == {"weight_bits": bits, "head_bits": bits, "head_kernel": operator}
    assert notes == []


def test_packed_weights_of_a_stock_checkpoint_with_a_plain_or_a_packed_head() -> None:
    packed = "_C::cpu_gemm_wna16"
    of_layers = plain(8, packed)
    stock: dict[str, Any] = {"ours": {}, "head_ours": {}, "configured_bits": 4}
    ran, _ = ran_of(seen(**stock, step_rows=[of_layers, plain(1)], head_rows=[plain(1)]))
    assert (ran["weight_bits"], ran["head_bits"], ran["head_kernel"]) == (4, 16, "aten::mm")
    ran, _ = ran_of(seen(**stock, step_rows=[plain(9, packed)], head_rows=[plain(1, packed)]))
    assert (ran["weight_bits"], ran["head_bits"], ran["head_kernel"]) == (4, 4, packed)
    # A checkpoint that is configured as packed, and computed plainly.
    ran, _ = ran_of(seen(**stock, step_rows=[plain(9)], head_rows=[plain(1)]))
    assert ran["weight_bits"] == 16


def test_what_nobody_saw_is_said() -> None:
    ran, notes = ran_of(seen(ours={}, head_ours={}, step_rows=[], head_rows=[]))
    assert ran == {"weight_bits": 16, "head_bits": 16, "head_kernel": None}
    assert [note.partition(" was")[0] for note in notes] == [
        "no GEMM operator of the layers",
        "no GEMM operator of the head",
    ]


def test_counters_that_were_full_are_said() -> None:
    ours = LAYERS | counts(Counts("avx512-q4", 4, 8, untracked_calls=3))
    _, (note,) = ran_of(seen(ours=ours))
    assert note.startswith("avx512-q4: 3 calls found no room in the counters")


def test_a_plain_head_of_ours() -> None:
    dense = "avx512_bf16-bf16w16"
    ours = counts(Counts("avx512-q4", 4, 8), Counts("rows-w16", 16, 1), Counts(dense, 16, 1))
    rows = [OpTime("vllm::cpu_dense_linear", "gemm", 5.0, 1)]
    ran, notes = ran_of(
        seen(ours=ours, head_ours=counts(Counts(dense, 16, 1)), step_rows=[OURS, *rows], head_rows=rows)
    )
    assert ran == {"weight_bits": 4, "head_bits": 16, "head_kernel": dense}
    assert notes == []
