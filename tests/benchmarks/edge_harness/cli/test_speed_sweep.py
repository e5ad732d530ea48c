"""Thread sweep, table and record of ``decode`` and ``prefill``; ``startup`` and ``bandwidth`` beside them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.cli import app as bench
from benchmarks.edge_harness.cli import speed_sweep
from benchmarks.edge_harness.cli.bandwidth import doublings
from benchmarks.edge_harness.cli.engine_options import engine_options
from benchmarks.edge_harness.cli.startup import PARTS, startup_record
from benchmarks.edge_harness.measure import fresh_process
from tests.benchmarks.edge_harness.measure.test_step_bytes import folder
from vllm_omni.errors import OmniError

PROCESS = {"allocator": "an allocator", "openmp_runtimes": ["libgomp"], "threads": 7}


class FakeMeasure:
    """Answers as the sweep's program does; faster with more threads."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], title: str, **options: Any) -> dict[str, Any]:
        self.commands.append(command)
        threads = int(command[command.index("--threads") + 1])
        tests = json.loads(command[command.index("--tests") + 1])
        return {
            "threads": threads,
            "process": PROCESS,
            "kernels": {"a": 3},
            "ran": {"weight_bits": 4},
            "verification": {"kind": "logprob", "value": -3.5, "of": "x"},
            "tests": [self._test(test, threads) for test in tests],
        }

    def _test(self, test: dict[str, Any], threads: int) -> dict[str, Any]:
        rates = [10.0 * threads, 12.0 * threads]
        metrics = {
            "tg_tps": rates[0],
            "pp_tps": rates[0],
            "step_ms": 9.0,
            "itl_ms_p50": 8.0,
            "itl_ms_p99": 11.0,
        }
        empty = test.get("empty_cache", False)
        return {
            "workload": {"depth": 0, "batch": 1, "empty_cache": False} | test,
            "metrics": metrics | {"ceiling_share": 0.5, "ttft_ms": 5.0},
            "samples": {"tg_tps": rates, "pp_tps": rates},
            "notes": ["decode measured on an empty KV cache"] if empty else [],
        }


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> FakeMeasure:
    fake = FakeMeasure()
    monkeypatch.setattr(speed_sweep, "measure_in_fresh_process", fake)
    return fake


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "tiny", ["model.embed_tokens.weight", "model.layers.0.q_proj.weight"])


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.cli.machine import Machine

    found = Machine((0, 1), "as the test says", 1 << 33, "as the test says")
    monkeypatch.setattr(Machine, "read", classmethod(lambda cls: found))


def test_every_thread_count_is_a_fresh_process_and_every_test_a_line(
    measure: FakeMeasure, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "decode.json"
    arguments = [
        *("decode", "--model", str(model), "--threads", "1,2", "--batch", "1,4", "--depth", "512,2048"),
        *("-n", "128", "--out", str(out)),
    ]
    assert bench.main(arguments) == 0
    shown = capsys.readouterr()
    assert len(measure.commands) == 2
    record = json.loads(shown.out)
    assert [(row["threads"], row["batch"], row["test"]) for row in record["table"]] == [
        (threads, batch, f"tg128 @ d{depth}")
        for threads in (1, 2)
        for batch in (1, 4)
        for depth in (512, 2048)
    ]
    # The record's own figures: the most threads, the first test.
    assert record["tg_tps"] == 20
    assert record["threads"] == 2
    assert record["itl_ms_p99"] == 11
    assert "| tg128 @ d512 | 11.00 ± 1.41 |" in shown.err
    artifact = read(out)
    assert artifact.result is not None
    assert artifact.result["table"] == record["table"]
    assert artifact.arms[0].kernels == {"a": 3}
    # Of the process that measured.
    assert artifact.arms[0].allocator == "an allocator"
    assert artifact.arms[0].threads == 7
    assert artifact.arms[0].model is not None
    assert artifact.arms[0].model.id == "tiny"


def test_decode_times_as_many_tokens_as_it_says(measure: FakeMeasure, model: Path) -> None:
    bench.main(["decode", "--model", str(model), "-n", "32", "--threads", "2"])
    tests = json.loads(measure.commands[0][measure.commands[0].index("--tests") + 1])
    # The first token is the prompt's.
    assert tests == [
        {"prompt_tokens": 512, "decode_tokens": 33, "batch": 1, "repeats": 5, "empty_cache": False}
    ]


def test_an_empty_cache_is_noted(
    measure: FakeMeasure, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["decode", "--model", str(model), "--depth", "0"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert record["notes"] == ["decode measured on an empty KV cache"]
    assert record["table"][0]["test"] == "tg128"
    assert "note: decode measured on an empty KV cache" in shown.err


@pytest.mark.parametrize("form", ["md", "csv"])
def test_a_table_on_standard_output(
    form: str, measure: FakeMeasure, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "prefill",
        "--model",
        str(model),
        "--prompt-len",
        "128,512",
        "--depth",
        "0,64",
        "--format",
        form,
    ]
    assert bench.main(arguments) == 0
    out = capsys.readouterr().out
    names = ["pp128", "pp128 @ d64", "pp512", "pp512 @ d64"]
    if form == "csv":
        assert [row["test"] for row in csv.DictReader(io.StringIO(out))] == names
    else:
        assert [line.split(" | ")[5] for line in out.splitlines()[2:]] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "1,3"], "--threads 1,3: expected at most 2, the cores of this process"),
        (["--threads", "0"], "--threads 0: expected numbers from 1 on, separated by commas"),
        (["--batch", "1,x"], "--batch 1,x: expected numbers from 1 on"),
        (["--depth", "-1"], "--depth -1: expected numbers from 0 on"),
        (["--engine-args", "[1]"], "--engine-args [1]: expected a JSON object"),
        (["--engine-args", "{"], "--engine-args {: expected a JSON object"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, measure: FakeMeasure, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["decode", "--model", str(model), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert measure.commands == []


def test_a_result_is_never_overwritten(
    measure: FakeMeasure, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "old.json"
    out.write_text("old")
    assert bench.main(["decode", "--model", str(model), "--out", str(out)]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert measure.commands == []
    assert out.read_text() == "old"


def test_options_of_the_engine() -> None:
    assert engine_options(stock=True, engine_args='{"a": 1}', cache_root=None, ceiling=False, threads=3) == [
        *("--engine-args", '{"a": 1}', "--stock", "--no-ceiling", "--threads", "3")
    ]


def start(value: float) -> dict[str, Any]:
    return dict.fromkeys(("ready_s", "init_s", *PARTS), value) | {"threads": 2, "process": PROCESS}


def test_the_cold_start_stays_apart_from_the_warm_ones() -> None:
    record = startup_record([start(100.0), start(10.0), start(30.0), start(20.0)], cold=True)
    assert record["ready_s"] == 20
    assert record["cold_compile_s"] == 100
    assert record["samples"]["ready_s"] == [10, 30, 20]
    assert len(record["starts"]) == 4
    without = startup_record([start(100.0), start(10.0)], cold=False)
    assert "cold_ready_s" not in without
    assert len(without["starts"]) == 1
    assert without["notes"] == ["one warm start: its spread is not known"]


def test_startup_runs_every_start_on_one_new_cache(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def fake(command: list[str], title: str, **options: Any) -> dict[str, Any]:
        folder_of_cache = Path(command[command.index("--cache-root") + 1])
        assert folder_of_cache.is_dir()
        commands.append(command)
        return start(5.0 + len(commands))

    monkeypatch.setattr(fresh_process, "measure_in_fresh_process", fake)
    assert bench.main(["startup", "--model", str(model), "--repeats", "2"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(commands) == 3
    assert len({command[command.index("--cache-root") + 1] for command in commands}) == 1
    assert not Path(commands[0][commands[0].index("--cache-root") + 1]).exists()
    assert record["cold_ready_s"] == 6
    assert record["ready_s"] == 7.5


def test_bandwidth_shows_each_thread_count_and_keeps_the_best(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(command: list[str], title: str, **options: Any) -> dict[str, Any]:
        threads = int(command[command.index("--threads") + 1])
        figures = {"ceiling_gbps": 10.0 * threads, "ceiling_gbps_best": 99.0, "ceiling_gbps_worst": 1.0}
        samples = {"ceiling_gbps": [10.0 * threads]}
        return {"threads": threads, "samples": samples, "buffer_mb": 268.0, "cache_multiple": 2.0} | figures

    monkeypatch.setattr(fresh_process, "measure_in_fresh_process", fake)
    assert bench.main(["bandwidth"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ceiling_gbps"] == 20
    assert [run["threads"] for run in record["runs"]] == [1, 2]
    assert any("less than 4 times" in note for note in record["notes"])


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_thread_counts_double(most: int, counts: list[int]) -> None:
    assert doublings(most) == counts


def test_numbers_come_once() -> None:
    assert speed_sweep.counts("2,1,2", "--batch", 1) == [2, 1]
    with pytest.raises(OmniError):
        speed_sweep.counts("", "--batch", 1)
