"""The last JSON object of an output, whatever surrounds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.edge_harness.grid import output as module
from benchmarks.edge_harness.grid.output import parse_output, read_output


@pytest.mark.parametrize(
    "text",
    [
        '{"tg_tps": 3}',
        'INFO 1 {not json}\n{"tg_tps": 1}\nmore\n  {"tg_tps": 3}\nbye\n',
        '{"tg_tps": 1}\nloading 10%\rloading 100%\r{"tg_tps": 3}\n',
        '{\n  "tg_tps": 3,\n  "list": [\n    {"tg_tps": 4}\n  ]\n}\n',
        "{'tg_tps': 9}\n{}}\n{\n" + '{"tg_tps": 3}\n[1, {"tg_tps": 4}]\n"{"\n',
        '{"tg_tps": 1} {"tg_tps": 2}\n{"tg_tps": 3} trailing',
        '{"tg_tps": 1, "tg_tps": 3}',
        "\ufeff\n" + '{"tg_tps": 3}',
    ],
)
def test_the_last_object_that_begins_a_line_counts(text: str) -> None:
    output = parse_output(text)
    assert output.problem is None
    assert output.metrics == {"tg_tps": 3.0}


@pytest.mark.parametrize("text", ["", "\n", "done\n", "[1, 2]\n", '"x"', "{x}\n", "log: {}", "null"])
def test_an_output_without_an_object(text: str) -> None:
    output = parse_output(text)
    assert output.problem == "no JSON object on standard output"
    assert (output.reported, output.metrics) == ({}, {})


@pytest.mark.parametrize(
    "tail",
    [
        '{"tg_tps": 4',
        '{"tg_tps": 4, "text": "abc',
        '{"list": [\n{"tg_tps": 4},\n',
        '{"a":',
        "{",
        '{"a": {"b": 1}',
    ],
)
def test_an_object_that_is_cut_off_is_not_replaced_by_an_earlier_or_inner_one(tail: str) -> None:
    output = parse_output('{"tg_tps": 3}\n' + tail)
    assert output.problem == "the last JSON object on standard output is cut off"
    assert output.cut_off
    assert output.metrics == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # What is indented further than a malformed object may be a part of it.
        ('{"tg_tps": 3}\n{\n  "a": 1,,\n  "list": [\n    {"tg_tps": 4}\n  ]\n}\n', 3.0),
        ('{\n "a": 1,,\n "b":\n {"tg_tps": 4}\n}\n', None),
        ('{\n "a": 1,,\n "b":\n {"tg_tps": 4}\n}\n{"tg_tps": 5}\n', 5.0),
    ],
)
def test_an_inner_object_of_a_malformed_one_is_not_taken(text: str, found: float | None) -> None:
    output = parse_output(text)
    assert output.metrics.get("tg_tps") == found
    assert (output.problem is None) is (found is not None)


def test_many_malformed_lines_take_no_time_that_grows_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one attempt has read is not read again by the next."""
    attempts = []
    decode = module._decode
    monkeypatch.setattr(module, "_decode", lambda text, begin: attempts.append(begin) or decode(text, begin))
    lines = '{"a": [\n' * 300
    assert parse_output(lines + "oops\n").problem is not None
    assert len(attempts) == 1


def test_bookkeeping_is_no_metric() -> None:
    text = '{"tg_tps": 1, "threads": 4, "warm_up_rounds": 3, "cold_ready_s": 9.5, "first_token_s": 1}'
    output = parse_output(text)
    assert output.metrics == {"tg_tps": 1.0}
    assert output.reported["cold_ready_s"] == 9.5


def test_metrics_are_finite_numbers_at_the_top() -> None:
    output = parse_output(
        '{"a": 1, "b": 2.5, "yes": true, "text": "3", "none": null, "list": [1], "nan": NaN,'
        ' "inf": -Infinity, "big": 1e999, "huge": '
        + "9" * 400
        + ', "samples": 4, "sampled.wall_s": 5, "deep": {"x": 1}}'
    )
    assert output.metrics == {"a": 1.0, "b": 2.5}
    assert output.reported["nan"] == "NaN"
    assert output.reported["inf"] == "-Infinity"
    assert output.reported["big"] == "1e999"
    assert output.reported["deep"] == {"x": 1}


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000])
def test_hostile_nesting_is_an_error_not_a_crash(deep: str) -> None:
    assert parse_output('{"a": ' + deep).problem is not None


def test_of_a_flooded_output_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.edge_harness.grid.output.LONGEST_OUTPUT_BYTES", 64)
    path = tmp_path / "stdout"
    path.write_bytes(b'{"early": 1}\n' + b"\xff" * 1000 + b'\n{"tg_tps": 3}\n')
    assert read_output(path).reported == {"tg_tps": 3}
