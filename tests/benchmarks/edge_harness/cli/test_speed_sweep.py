"""Thread sweep, table and record of ``decode`` and ``prefill``; ``startup`` and ``bandwidth`` beside them."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.cli import app as bench
from benchmarks.edge_harness.cli import probe_output, speed_sweep
from benchmarks.edge_harness.cli.bandwidth import doublings
from benchmarks.edge_harness.cli.engine_options import engine_options
from benchmarks.edge_harness.cli.startup import PARTS, startup_record
from benchmarks.edge_harness.grid.monitors import CoreLoad, NativeMonitors, OccupancySeen
from benchmarks.edge_harness.measure import fresh_process
from tests.benchmarks.edge_harness.measure.test_step_bytes import folder
from vllm_omni.errors import OmniError

PROCESS = {
    "allocator": "an allocator",
    "openmp_runtimes": ["libgomp"],
    "threads": 7,
    "environment": {"A": "b"},
}


class ScriptedPrograms:
    """Real processes that answer as the sweep's program does; faster with more threads."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, module: str, *arguments: str) -> list[str]:
        self.commands.append([module, *arguments])
        threads = int(arguments[arguments.index("--threads") + 1])
        tests = json.loads(arguments[arguments.index("--tests") + 1])
        return says(self._record(threads, tests))

    def _record(self, threads: int, tests: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "threads": threads,
            "cores": list(range(threads)),
            "import_s": 2.5,
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


class FreeCores(NativeMonitors):
    """What runs is watched; who else is there, while tests run, is not asked."""

    busy = 0.0

    def occupancy(self, cores: Sequence[int], window_s: float, own_pids: Sequence[int]) -> OccupancySeen:
        return OccupancySeen(
            {core: CoreLoad(self.busy, 0.0) for core in cores},
            tuple((1, "somebody", core, self.busy) for core in cores),
        )


class BusyCores(FreeCores):
    busy = 0.9


def says(record: dict[str, Any]) -> list[str]:
    """A program that reports ``record``."""
    return [sys.executable, "-I", "-S", "-c", f"print({json.dumps(record)!r})"]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ScriptedPrograms:
    scripted = ScriptedPrograms()
    monkeypatch.setattr(speed_sweep, "program", scripted)
    return scripted


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "tiny", ["model.embed_tokens.weight", "model.layers.0.q_proj.weight"])


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.cli.machine import Machine

    found = Machine((0, 1), "as the test says", 1 << 33, "as the test says")
    monkeypatch.setattr(Machine, "read", classmethod(lambda cls: found))
    monkeypatch.setattr(probe_output, "NativeMonitors", FreeCores)


def test_every_thread_count_is_a_fresh_process_and_every_test_a_line(
    measure: ScriptedPrograms, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert artifact.metric == "tg_tps"
    # A process and its four tests, for each thread count.
    tags = [
        tag
        for threads in ("1 thread", "2 threads")
        for tag in (
            f"process, {threads}",
            *(f"tg128 @ d{depth}, batch {batch}, {threads}" for batch in (1, 4) for depth in (512, 2048)),
        )
    ]
    assert [run.tag for run in artifact.runs] == tags
    assert [arm.tag for arm in artifact.arms] == tags
    assert artifact.arms[0].kernels == {"a": 3}
    assert artifact.arms[0].model is not None
    assert artifact.arms[0].model.id == "tiny"
    # Of the process that measured, and not of this one, which computes nothing.
    assert artifact.arms[0].env == {"A": "b"}
    assert artifact.arms[0].threads == 1
    assert artifact.arms[0].openmp_runtimes == ["libgomp"]
    assert artifact.arms[0].command[1:3] == ["-I", "-S"]
    run = artifact.runs[1]
    assert run.metrics["tg_tps"] == 10
    assert run.reported["samples"]["tg_tps"] == [10, 12]
    assert run.reported["cores"] == [0]
    assert run.disturbance is not None
    assert run.verification is not None
    assert artifact.runs[0].metrics == {"import_s": 2.5}
    medians = {row.tag: row.median for row in artifact.summaries if row.metric == "tg_tps"}
    assert medians == {tag: 10.0 if "1 thread" in tag else 20.0 for tag in tags if "tg128" in tag}
    assert artifact.provenance.thread_set.cores == [0, 1]
    assert "process, 1 thread: 0; " in (artifact.provenance.thread_set.note or "")
    assert artifact.provenance.load_before.busy_cores is not None


def test_one_thread_is_not_published_as_all_cores(
    measure: ScriptedPrograms, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "decode.json"
    assert bench.main(["decode", "--model", str(model), "--threads", "1", "--out", str(out)]) == 0
    found = read(out).provenance
    assert (found.thread_set.cores, found.thread_set.note) == ([0], None)
    assert found.load_before.busy_cores is not None
    assert found.load_before.busy_cores.keys() == {"0"}


def test_two_probes_of_one_command_are_compared(
    measure: ScriptedPrograms, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        out = ["--cache-root", str(tmp_path / name), "--out", str(tmp_path / f"{name}.json")]
        assert bench.main(["decode", "--model", str(model), "--threads", "1", *out]) == 0
    capsys.readouterr()
    places = (str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert bench.main(["compare", *places, "--json"]) == 0
    rows = {(row["tag"], row["metric"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    row = rows["tg128 @ d512, batch 1, 1 thread", "tg_tps"]
    assert (row["median_a"], row["median_b"], row["n_a"]) == (10, 10, 1)
    # One process each says nothing of the next.
    assert "expected 3 or more" in row["sentence"] or "was disturbed" in row["sentence"]


def test_a_probe_is_reported_as_a_grid_is(
    measure: ScriptedPrograms, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "decode.json"
    assert bench.main(["decode", "--model", str(model), "--threads", "1", "--out", str(out)]) == 0
    capsys.readouterr()
    tag = "tg128 @ d512, batch 1, 1 thread"
    assert bench.main(["report", str(out), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["value"] for row in rows if (row["tag"], row["metric"]) == (tag, "tg_tps")] == ["10.0"]
    assert bench.main(["report", str(out), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert tag in text
    assert "| tg\\_tps | tokens/s |" in text
    # The table of the record.
    assert "| model | " in text
    assert bench.main(["report", str(out), "--out", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert page.count('class="raw"') >= 2
    assert "<h3>Medians</h3>" in page
    assert "<h3>Every sample</h3>" in page


def test_busy_cores_are_refused_unless_allowed(
    measure: ScriptedPrograms,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(probe_output, "NativeMonitors", BusyCores)
    out = tmp_path / "decode.json"
    arguments = ["decode", "--model", str(model), "--threads", "1", "--out", str(out)]
    assert bench.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: core 0 is 90 % busy (somebody (pid 1) 90 %): expected free cores")
    assert err.count("\n") == 1
    assert not out.exists()
    assert bench.main([*arguments, "--allow-busy"]) == 0
    assert read(out).notes == ["begun on busy cores: core 0 is 90 % busy (somebody (pid 1) 90 %)"]


def test_decode_times_as_many_tokens_as_it_says(measure: ScriptedPrograms, model: Path) -> None:
    bench.main(["decode", "--model", str(model), "-n", "32", "--threads", "2"])
    tests = json.loads(measure.commands[0][measure.commands[0].index("--tests") + 1])
    # The first token is the prompt's.
    assert tests == [
        {"prompt_tokens": 512, "decode_tokens": 33, "batch": 1, "repeats": 5, "empty_cache": False}
    ]


def test_an_empty_cache_is_noted(
    measure: ScriptedPrograms, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["decode", "--model", str(model), "--depth", "0"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert record["notes"] == ["decode measured on an empty KV cache"]
    assert record["table"][0]["test"] == "tg128"
    assert "note: decode measured on an empty KV cache" in shown.err


@pytest.mark.parametrize("form", ["md", "csv"])
def test_a_table_on_standard_output(
    form: str, measure: ScriptedPrograms, model: Path, capsys: pytest.CaptureFixture[str]
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
    arguments: list[str],
    message: str,
    measure: ScriptedPrograms,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main(["decode", "--model", str(model), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert measure.commands == []


def test_a_result_is_never_overwritten(
    measure: ScriptedPrograms, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def scripted(module: str, *arguments: str) -> list[str]:
        """Every start takes a second longer: it counts those before it in the cache."""
        commands.append(list(arguments))
        cache = Path(arguments[arguments.index("--cache-root") + 1])
        assert cache.is_dir()
        code = (
            "import json, pathlib, sys\n"
            f"log = pathlib.Path({str(cache / 'starts')!r})\n"
            "before = len(log.read_text()) if log.exists() else 0\n"
            "log.write_text('x' * (before + 1))\n"
            f"record = json.loads({json.dumps(start(0.0))!r})\n"
            "print(json.dumps({k: 6.0 + before if v == 0 else v for k, v in record.items()}))"
        )
        return [sys.executable, "-I", "-S", "-c", code]

    monkeypatch.setattr(fresh_process, "program", scripted)
    out = tmp_path / "startup.json"
    assert bench.main(["startup", "--model", str(model), "--repeats", "2", "--out", str(out)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["starts"]) == 3
    assert not Path(commands[0][commands[0].index("--cache-root") + 1]).exists()
    assert record["cold_ready_s"] == 6
    assert record["ready_s"] == 7.5
    runs = read(out).runs
    assert [(run.pass_no, run.cold_cache, run.metrics["ready_s"]) for run in runs] == [
        (1, True, 6.0),
        (2, False, 7.0),
        (3, False, 8.0),
    ]
    assert [row.median for row in read(out).summaries if row.metric == "ready_s"] == [7.5]


def test_bandwidth_shows_each_thread_count_and_keeps_the_best(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def scripted(module: str, *arguments: str) -> list[str]:
        threads = int(arguments[arguments.index("--threads") + 1])
        figures = {"ceiling_gbps": 10.0 * threads, "ceiling_gbps_best": 99.0, "ceiling_gbps_worst": 1.0}
        samples = {"ceiling_gbps": [10.0 * threads]}
        return says(
            {"threads": threads, "samples": samples, "buffer_mb": 268.0, "cache_multiple": 2.0} | figures
        )

    monkeypatch.setattr(fresh_process, "program", scripted)
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
