"""One figure from two paths, or none."""

from __future__ import annotations

import math

import pytest

from benchmarks.edge_harness.measure.verification_paths import PathsDisagree, verification_record
from benchmarks.edge_harness.measure.verification_text import ids_digest

IDS = [5, 6, 7]


def test_paths_that_agree_are_one_figure() -> None:
    record = verification_record([-2.0, -4.0], [-2.01, -4.01], IDS)
    assert record["verification"] == {
        "kind": "logprob",
        "value": pytest.approx(-3.005),
        "of": ids_digest(IDS),
    }
    assert record["verification_paths"] == {
        "logprob_prefill_nats": pytest.approx(-3.0),
        "logprob_decode_nats": pytest.approx(-3.01),
    }


def test_paths_that_disagree_are_none() -> None:
    with pytest.raises(PathsDisagree, match=r"prefill and decode disagree: -3\.0000 vs -3\.5000 nats"):
        verification_record([-2.0, -4.0], [-3.0, -4.0], IDS)


def test_a_path_that_cannot_be_asked_is_named() -> None:
    record = verification_record([-2.0, -4.0], None, IDS)
    assert record["verification"]["value"] == -3
    assert record["verification_paths"] == {"logprob_prefill_nats": -3.0, "not_verified": "decode"}
    with pytest.raises(PathsDisagree, match="neither"):
        verification_record(None, None, IDS)


@pytest.mark.parametrize("decode", [[-1.0], [-1.0, -math.inf], [math.nan, -1.0]])
def test_what_is_no_figure_is_refused(decode: list[float]) -> None:
    with pytest.raises(PathsDisagree, match="decode: expected"):
        verification_record([-1.0, -1.0], decode, IDS)
