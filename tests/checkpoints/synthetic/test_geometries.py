from __future__ import annotations

import pytest

from vllm_omni.checkpoints.synthetic.geometries import GEOMETRIES, geometry, tensors
from vllm_omni.errors import OmniError


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        # As published: a tied head counts once.
        ("qwen3-0.6b", 596.0),
        ("qwen3-1.7b", 1720.6),
        ("qwen3-4b", 4022.5),
        ("llama-1b", 1235.8),
        ("llama-3b", 3212.7),
        ("smollm2-135m", 134.5),
        ("smollm2-360m", 361.8),
        ("smollm2-1.7b", 1711.4),
    ],
)
def test_parameters_are_the_published_ones(name: str, millions: float) -> None:
    assert geometry(name).parameters / 1e6 == pytest.approx(millions, abs=0.06)


def test_spark_has_the_published_linear_shapes() -> None:
    shapes = {
        tensor.module.rpartition(".")[2]: tensor.shape
        for tensor in tensors(geometry("spark-1.7b"))
        if tensor.role in ("linear", "residual", "gate", "table")
    }
    assert shapes == {
        "embedding": (131072, 2048),
        "q_k_v_proj": (3072, 2048),
        "out_proj": (2048, 2048),
        "g_proj": (8, 2048),
        "gate_proj": (6656, 2048),
        "up_proj": (6656, 2048),
        "down_proj": (2048, 6656),
    }
    # 4 linears, gate and up apart, in 28 layers, and the head: the published 1,707.1 million.
    matrices = sum(
        t.elements for t in tensors(geometry("spark-1.7b")) if t.role in ("linear", "residual", "table")
    )
    assert matrices / 1e6 == pytest.approx(1707.1, abs=0.1)


def test_what_vllm_joins_is_adjacent() -> None:
    for name, row in GEOMETRIES.items():
        if row.family == "spark2_5":
            continue
        names = [tensor.name for tensor in tensors(row) if tensor.role in ("linear", "residual")]
        for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            start = next(i for i, n in enumerate(names) if group[0] in n)
            assert [n.split(".")[-2] for n in names[start : start + len(group)]] == list(group), name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(OmniError, match=r"expected one of qwen3-0.6b, .*; found 'gpt-5'"):
        geometry("gpt-5")
