"""``run`` from its command line to its artifact, in this process and with scripted monitors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.edge_harness.artifact.file import read
from benchmarks.edge_harness.artifact.schema import Artifact, Peer
from benchmarks.edge_harness.artifact.verification import verify
from benchmarks.edge_harness.cli.app import main
from benchmarks.edge_harness.grid import assemble, leftovers, session
from benchmarks.edge_harness.grid.host_lock import HostLock
from benchmarks.edge_harness.grid.journal import Journal, Started, journal_path
from benchmarks.edge_harness.grid.monitors import MemorySeen
from benchmarks.edge_harness.grid.recomputation import contradictions
from benchmarks.edge_harness.spec import Arm
from tests.benchmarks.edge_harness.grid.scripted import COMPILES, ScriptedMonitors, here, python
from vllm_omni import monitor

PRINT_ONE = "print('{\"m\": 1}')"
METRICS = {"m": {"direction": "higher"}}
CORE = str(here().cores[0])


@pytest.fixture(autouse=True)
def monitors(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> ScriptedMonitors:
    """Nobody else is on the cores, however busy this machine is; no other grid runs, the sources stay as they
    are, and a core is left for the harness."""
    scripted = ScriptedMonitors()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    monkeypatch.setattr(session, "build_text", lambda: "commit 1")
    for module in (session, assemble):
        monkeypatch.setattr(module, "is_watched_apart", lambda plan: True)
    monkeypatch.setattr(session, "NativeMonitors", lambda: scripted)
    seen = SimpleNamespace(cores={int(CORE): SimpleNamespace(foreign=0.0)}, processes=[])
    monkeypatch.setattr(monitor, "occupancy", lambda *args, **options: seen)
    return scripted


class Bench:
    """A folder with a spec, and ``run`` on it."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.out, self._capfd = folder, folder / "out.json", capfd
        self.spec_file = folder / "arms.json"
        self.stdout, self.stderr = "", ""

    def spec(self, arms: dict[str, Any], **fields: Any) -> None:
        listed = [
            {"tag": tag} | (arm if isinstance(arm, dict) else {"command": python(arm)})
            for tag, arm in arms.items()
        ]
        values = {"arms": listed, "metrics": METRICS, "metric": "m", "passes": 1, "settle_s": 0}
        self.spec_file.write_text(json.dumps(values | fields))

    def run(self, *options: str) -> int:
        self._capfd.readouterr()
        code = main(["--spec", str(self.spec_file), "--out", str(self.out), "--cores", CORE, *options])
        self.stdout, self.stderr = self._capfd.readouterr()
        return code

    @property
    def artifact(self) -> Artifact:
        return read(self.out)


@pytest.fixture
def bench(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capfd)


def counting(folder: Path) -> str:
    """An arm whose figure is the number of runs so far."""
    file = folder / "count"
    return f"""
import pathlib
file = pathlib.Path({str(file)!r})
count = len(file.read_text()) + 1 if file.exists() else 1
file.write_text("x" * count)
print('{{"m": %d}}' % count)"""


def test_a_grid_becomes_a_valid_artifact(bench: Bench) -> None:
    figures = {"a": 100, "b": 123, "c": 100}
    bench.spec({tag: f"print('{{\"m\": {figure}}}')" for tag, figure in figures.items()}, title="three")
    assert bench.run("--passes", "4") == 0
    artifact = bench.artifact
    assert [verdict.state for verdict in verify([bench.out], contradictions)] == ["valid"]
    assert (artifact.complete, artifact.exit_code, artifact.title) == (True, 0, "three")
    assert all(arm.allowed_cores == [int(CORE)] for arm in artifact.arms)
    assert len(artifact.runs) == 12
    assert [(row.tag, row.n, row.median) for row in artifact.summaries if row.metric == "m"] == [
        ("a", 4, 100),
        ("b", 4, 123),
        ("c", 4, 100),
    ]
    verdicts = {row.a: row.verdict for row in artifact.comparisons if row.metric == "m"}
    assert verdicts == {"b": "a_higher", "c": "no_difference"}
    # What the command line said is in the spec of record.
    assert artifact.spec is not None
    assert (artifact.spec.passes, artifact.spec.cores) == (4, CORE)
    assert artifact.provenance.thread_set.cores == [int(CORE)]
    result = json.loads(bench.stdout.splitlines()[-1])
    assert result["medians"] == {"a": 100.0, "b": 123.0, "c": 100.0}
    assert result["complete"] is True
    # Progress and the table are for people.
    assert "[12/12] pass 4/4" in bench.stderr
    assert "higher is better" in bench.stderr
    assert sorted(path.name for path in bench.folder.iterdir()) == ["arms.json", "out.json"]


def test_the_control_is_the_first_arm_once_more(bench: Bench) -> None:
    bench.spec({"a": counting(bench.folder), "b": PRINT_ONE})
    assert bench.run("--control", "--passes", "3") == 0
    artifact = bench.artifact
    assert [arm.tag for arm in artifact.arms] == ["a", "b", "a-control"]
    assert artifact.arms[0].command == artifact.arms[2].command
    assert [floor.metric for floor in artifact.noise_floor if floor.metric == "m"] == ["m"]
    assert "noise floor of m" in bench.stderr
    assert [verdict.why for verdict in verify([bench.out], contradictions)] == [artifact.title]


def test_an_arm_without_a_run_that_counts_makes_the_exit_code_one(bench: Bench) -> None:
    bench.spec({"a": PRINT_ONE, "b": "raise SystemExit(4)"})
    assert bench.run("--passes", "2") == 1
    artifact = bench.artifact
    assert (artifact.complete, artifact.exit_code) == (True, 1)
    assert [run.status for run in artifact.runs] == ["ok", "failed", "ok", "failed"]
    assert "b: 2 of 2 runs do not count; each has its reason" in artifact.notes
    assert "exit code 4" in bench.stderr
    assert [verdict.state for verdict in verify([bench.out])] == ["valid"]


def test_a_metric_that_counts_warm_runs_says_when_there_is_none(bench: Bench) -> None:
    bench.spec({"a": COMPILES + PRINT_ONE}, metric="sampled.wall_s")
    assert bench.run("--passes", "1") == 0
    assert bench.artifact.notes == ["a: no run with a warm compile cache, and sampled.wall_s counts no other"]
    bench.out.unlink()
    assert bench.run("--passes", "2") == 0
    assert bench.artifact.notes == []


@pytest.mark.parametrize(
    ("arm", "metric", "near"),
    [
        (PRINT_ONE, "sampled.wal_s", "sampled.wall_s"),
        ({"adapter": "ours", "model": "m"}, "tgtps", "tg_tps"),
        ({"unavailable": "not here"}, "tgtps", "tg_tps"),
    ],
)
def test_a_metric_that_no_run_can_have_is_refused_before_anything_runs(
    bench: Bench, arm: Any, metric: str, near: str
) -> None:
    bench.spec({"a": arm}, metric=metric)
    assert bench.run("--passes", "1") == 2
    assert f"metric {metric}: expected one of the harness's or of the spec's metrics: {near}" in bench.stderr
    assert not bench.out.exists()


def test_one_failure_of_several_does_not(bench: Bench) -> None:
    code = counting(bench.folder) + "\nif count == 1: raise SystemExit(1)"
    bench.spec({"a": code})
    assert bench.run("--passes", "2") == 0


def test_a_check_without_a_band_is_refused_before_anything_runs(bench: Bench) -> None:
    bench.spec({"a": PRINT_ONE})
    check = bench.folder / "expected.json"
    check.write_text(json.dumps({"arms": {"a": {"m": 1.0}}}))
    assert bench.run("--check", str(check)) == 2
    assert "expected a band in bands_pct" in bench.stderr


@pytest.mark.parametrize(("expected", "code"), [(1.0, 0), (2.0, 1)])
def test_a_regression_makes_the_exit_code_one(bench: Bench, expected: float, code: int) -> None:
    bench.spec({"a": PRINT_ONE})
    check = bench.folder / "expected.json"
    check.write_text(json.dumps({"arms": {"a": {"m": expected}}, "bands_pct": {"m": 5}}))
    assert bench.run("--check", str(check), "--passes", "3") == code
    assert [row.status for row in bench.artifact.checks if row.metric == "m"] == [
        "regression" if code else "ok"
    ]


def test_an_unavailable_arm_is_reported_and_not_run(bench: Bench) -> None:
    bench.spec({"a": PRINT_ONE, "later": {"unavailable": "release after load is not built yet"}})
    assert bench.run() == 0
    assert "later: not run: release after load is not built yet" in bench.artifact.notes
    assert bench.artifact.arms[1].unavailable == "release after load is not built yet"
    assert {run.tag for run in bench.artifact.runs} == {"a"}


def test_what_a_program_notes_stands_above_everything(bench: Bench) -> None:
    bench.spec({"a": 'print(\'{"m": 1, "notes": ["decode measured on an empty KV cache"]}\')'})
    assert bench.run("--passes", "2") == 0
    assert bench.artifact.notes == ["a: decode measured on an empty KV cache"]
    assert bench.stderr.index("note: a: decode measured") < bench.stderr.index("median")


def test_what_an_arm_says_of_itself_is_its_provenance(bench: Bench) -> None:
    model = {
        "id": "smollm2", "config_sha256": None, "weights_sha256": "ab", "weights_bytes": 5,
        "quantization": None, "head_bits": 8,
    }  # fmt: skip
    peer = {"name": "p", "version": "1", "commit": None, "build_flags": ["-O3"]}
    said = json.dumps({"m": 1, "model": model, "peer": peer, "kernels": {"gemv_q4": 30}})
    bench.spec({"a": f"print({said!r})", "b": 'print(\'{"m": 1, "model": 3, "kernels": {"k": "x"}}\')'})
    assert bench.run() == 0
    a, b = bench.artifact.arms
    assert a.model is not None
    assert a.model.model_dump() == model
    assert a.peer is not None
    assert a.peer.model_dump() == peer
    assert a.kernels == {"gemv_q4": 30}
    assert (b.model, b.peer, b.kernels) == (None, None, None)


def test_runs_that_contradict_each_other_are_noted_and_not_compared(bench: Bench) -> None:
    """And one that does not count has no say in what the arm is."""
    said = 'print(\'{"m": 1, "kernels": {"k": %d}}\' % (count > 2))'
    invalid = 'print(\'{"m": 1, "kernels": {"other": 1}, "verification": 3}\') if count == 4 else '
    bench.spec({"a": PRINT_ONE, "b": counting(bench.folder) + "\n" + invalid + said})
    assert bench.run("--passes", "4") == 0
    artifact = bench.artifact
    assert [run.status for run in artifact.runs if run.tag == "b"] == ["ok", "ok", "ok", "invalid"]
    assert artifact.arms[1].kernels == {"k": 1}
    assert "b: not comparable: its runs differ in kernels" in artifact.notes


def test_a_title_and_phases_name_no_folder_either(bench: Bench) -> None:
    folder = "/".join(("", "gpfs", "home", "somebody", "x"))
    said = json.dumps({"m": 1, "phases": [{"t_s": 1, "name": folder}]})
    bench.spec({"a": f"print({said!r})"}, title=f"on {folder}")
    assert bench.run() == 0
    assert "somebody" not in bench.out.read_text()
    assert [verdict.state for verdict in verify([bench.out], contradictions)] == ["valid"]


def test_another_grid_of_the_user_is_named(bench: Bench) -> None:
    bench.spec({"a": PRINT_ONE})
    with HostLock(Path("other.json")):
        assert bench.run() == 2
        holder = f"process {os.getpid()}, --out {Path('other.json').resolve()}"
        assert bench.stderr.startswith(f"error: another grid runs on this machine ({holder}): expected none")
        assert len(bench.stderr.splitlines()) == 1
        assert bench.run("--allow-busy") == 0
    assert bench.artifact.notes[0].startswith("begun while another grid ran on this machine (process ")


def test_cores_that_leave_none_for_the_harness_are_noted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (session, assemble):
        monkeypatch.setattr(module, "is_watched_apart", lambda plan: False)
    bench.spec({"a": PRINT_ONE})
    assert bench.run() == 0
    assert bench.artifact.notes == ["watched from the same cores"]
    assert "warning: watched from the same cores" in bench.stderr
    assert "watched from the same cores" in (bench.artifact.provenance.thread_set.note or "")


class TwoAdapters:
    """``missing`` says what to do; ``there`` prints a variable of its own and one that the arm may change."""

    def __init__(self, name: str) -> None:
        self.name = name

    def unavailable(self, arm: Arm) -> str | None:
        return "it is not built: run `make peers`" if self.name == "missing" else None

    def command(self, arm: Arm) -> list[str]:
        code = "import os; print('{\"m\": %s, \"two\": %s}' % (os.environ['ONE'], os.environ['TWO']))"
        return python(code)

    def environment(self, arm: Arm) -> dict[str, str]:
        return {"ONE": "1", "TWO": "1"}

    def peer(self, arm: Arm) -> Peer:
        return Peer(name=self.name, version="7", commit=None, build_flags=[])


def test_an_adapter_makes_the_command(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.edge_harness.adapters.registry.adapter", TwoAdapters)
    bench.spec({"a": {"adapter": "there", "env": {"TWO": "2"}}, "b": {"adapter": "missing"}})
    assert bench.run() == 0
    a, b = bench.artifact.arms
    assert bench.artifact.runs[0].reported == {"m": 1, "two": 2}
    assert a.env == {"ONE": "1", "TWO": "2"}
    assert a.peer is not None
    assert (a.adapter, a.peer.name, a.unavailable) == ("there", "there", None)
    assert (b.adapter, b.unavailable) == ("missing", "it is not built: run `make peers`")


def test_arms_that_disagree_are_not_ranked(bench: Bench) -> None:
    def said(m: int, token: int) -> str:
        value = {"kind": "token_ids", "value": [1, token], "of": "greedy"}
        return f"print({json.dumps({'m': m, 'verification': value})!r})"

    bench.spec({"a": said(1, 2), "same": said(2, 2), "other": said(2, 3)})
    assert bench.run("--passes", "3") == 0
    verdicts = {row.a: row.verdict for row in bench.artifact.comparisons if row.metric == "m"}
    assert verdicts == {"same": "a_higher", "other": "not_comparable"}


def test_a_text_goes_to_the_shell(bench: Bench) -> None:
    bench.spec({"a": {"command": "echo '{\"m\": 1}' | cat"}})
    assert bench.run() == 0


def test_what_could_not_be_sampled_is_said(bench: Bench, monitors: ScriptedMonitors) -> None:
    monitors.memory_seen = MemorySeen(problems=("Permission denied",))
    bench.spec({"a": PRINT_ONE})
    assert bench.run("--passes", "2") == 0
    assert bench.artifact.notes == ["a: memory that the harness sampled is incomplete: Permission denied"]


def test_busy_cores_are_refused_before_anything_runs(bench: Bench, monitors: ScriptedMonitors) -> None:
    monitors.busy = 0.5
    bench.spec({"a": counting(bench.folder)})
    assert bench.run() == 2
    assert bench.stderr == (
        f"error: core {CORE} is 50 % busy (somebody (pid 1) 50 %): expected free cores: wait, choose other "
        f"--cores than {CORE}, or record it with --allow-busy\n"
    )
    assert sorted(path.name for path in bench.folder.iterdir()) == ["arms.json"]


def test_busy_cores_that_are_allowed_are_on_record(bench: Bench, monitors: ScriptedMonitors) -> None:
    monitors.busy = 0.5
    bench.spec({"a": PRINT_ONE})
    assert bench.run("--allow-busy") == 0
    assert bench.artifact.notes == [f"begun on busy cores: core {CORE} is 50 % busy (somebody (pid 1) 50 %)"]


def test_a_result_is_never_overwritten(bench: Bench) -> None:
    bench.spec({"a": counting(bench.folder)})
    bench.out.write_text("old")
    assert bench.run() == 2
    assert bench.stderr.endswith("results are never overwritten\n")
    assert bench.out.read_text() == "old"
    assert not (bench.folder / "count").exists()


def test_a_finished_grid_is_not_resumed(bench: Bench) -> None:
    bench.spec({"a": PRINT_ONE})
    assert bench.run() == 0
    before = bench.out.read_bytes()
    assert bench.run("--resume") == 2
    assert "results are never overwritten" in bench.stderr
    assert bench.out.read_bytes() == before


BAD: dict[str, tuple[Callable[[Bench], object], list[str], str]] = {
    "no spec": (lambda b: b.spec_file.unlink(), [], "expected a readable spec"),
    "no json": (lambda b: b.spec_file.write_text("{"), [], "expected JSON"),
    "no arms": (lambda b: b.spec({}), [], "arms: List should have at least 1 item"),
    "no command": (lambda b: b.spec({"a": {}}), [], "expected one of command, adapter, unavailable"),
    "empty command": (lambda b: b.spec({"a": {"command": []}}), [], "command: expected a program"),
    "mistyped": (lambda b: b.spec({"a": {"command": ["x"], "enb": {}}}), [], "arms.0.enb: Extra inputs"),
    "adapter": (lambda b: b.spec({"a": {"adapter": "vllm3"}}), [], "adapter vllm3: expected one of ours"),
    "no metric": (lambda b: b.spec({"a": PRINT_ONE}, metric=None), [], "metric: expected what the grid"),
    "secret": (
        lambda b: b.spec({"a": {"command": ["x"], "env": {"HF_TOKEN": "s"}}}), [], "env HF_TOKEN: expected",
    ),
    "another secret": (
        lambda b: b.spec({"a": {"command": ["x"], "env": {"DB_PWD": "s"}}}), [], "env DB_PWD: expected",
    ),
    "control": (
        lambda b: b.spec({"a": PRINT_ONE, "a-control": PRINT_ONE}), ["--control"], "--control: ",
    ),
    "cores": (lambda b: None, ["--cores", "56-79x"], "--cores 56-79x: expected cores like 0,2-5"),
    "far cores": (lambda b: None, ["--cores", "50000-50079"], "--cores 50000-50079: expected cores that are"),
    "passes": (lambda b: None, ["--passes", "0"], "--passes"),
    "time limit": (lambda b: None, ["--timeout-s", "0"], "--timeout-s 0.0: Input should be greater than 0"),
    "pause": (lambda b: None, ["--settle-s", "-1"], "--settle-s -1.0: Input should be greater"),
    "check": (lambda b: None, ["--check", "nowhere.json"], "nowhere.json: expected a readable expect"),
    "resume": (lambda b: None, ["--resume"], "expected the runs of an unfinished grid, found none"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_nothing_runs(bench: Bench, what: str) -> None:
    spoil, options, expected = BAD[what]
    bench.spec({"a": counting(bench.folder)})
    spoil(bench)
    assert bench.run(*options) == 2
    assert expected in bench.stderr
    assert len(bench.stderr.splitlines()) == 1
    assert bench.stderr.startswith("error: ")
    assert {path.name for path in bench.folder.iterdir()} <= {"arms.json"}


def interrupted(bench: Bench) -> None:
    """A grid of four runs, stopped in its third as Ctrl-C does."""
    code = counting(bench.folder) + "\nif count == 3: os.kill(os.getppid(), 2); signal.pause()"
    bench.spec({"a": "import os, signal\n" + COMPILES + code})
    assert bench.run("--passes", "4") == 130


def test_ctrl_c_leaves_a_valid_incomplete_artifact(bench: Bench) -> None:
    interrupted(bench)
    artifact = bench.artifact
    assert (artifact.complete, artifact.exit_code, len(artifact.runs)) == (False, 130, 2)
    assert [verdict.state for verdict in verify([bench.out])] == ["valid"]
    assert "stopped: the result is marked incomplete" in bench.stderr
    assert journal_path(bench.out).exists()


def test_a_stopped_grid_goes_on_and_keeps_the_incomplete_result(bench: Bench) -> None:
    interrupted(bench)
    incomplete = bench.out.read_bytes()
    assert bench.run("--passes", "4") == 2
    assert bench.run("--passes", "5", "--resume") == 2
    assert "was begun with passes 4, found 5 now" in bench.stderr
    assert bench.out.read_bytes() == incomplete
    assert bench.run("--passes", "4", "--resume") == 0
    artifact = bench.artifact
    assert artifact.complete
    # The third run counted before it was stopped, and was made anew.
    assert [run.metrics["m"] for run in artifact.runs] == [1, 2, 4, 5]
    assert [run.cold_cache for run in artifact.runs] == [True, False, False, False]
    assert (bench.folder / "out.incomplete-1.json").read_bytes() == incomplete
    names = {path.name for path in bench.folder.iterdir()}
    assert names == {"arms.json", "count", "out.json", "out.incomplete-1.json"}


def test_a_lost_work_folder_makes_the_next_run_cold(bench: Bench) -> None:
    interrupted(bench)
    shutil.rmtree(bench.folder / "out.json.work")
    assert bench.run("--passes", "4", "--resume") == 0
    assert [run.cold_cache for run in bench.artifact.runs] == [True, False, True, False]


def test_another_build_does_not_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(bench)
    before = bench.out.read_bytes()
    monkeypatch.setattr(session, "build_text", lambda: "commit 2")
    assert bench.run("--passes", "4", "--resume") == 2
    assert "was begun with build commit 1, found commit 2 now" in bench.stderr
    assert len(bench.stderr.splitlines()) == 1
    assert bench.out.read_bytes() == before


def test_a_build_that_changes_meanwhile_refuses_every_comparison(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = iter(["commit 1", "commit 2"])
    monkeypatch.setattr(session, "build_text", lambda: next(builds))
    bench.spec({"a": PRINT_ONE, "b": "print('{\"m\": 2}')"})
    assert bench.run("--passes", "3") == 0
    artifact = bench.artifact
    why = "the build changed between the first run and the last: commit 1, then commit 2"
    assert artifact.complete
    assert artifact.notes[0] == f"nothing is compared: {why}"
    assert {row.sentence for row in artifact.comparisons if row.metric == "m"} == {
        f"not comparable because {why}"
    }
    assert all(row.verdict == "not_comparable" for row in artifact.comparisons)
    assert [verdict.state for verdict in verify([bench.out], contradictions)] == ["valid"]


@pytest.mark.parametrize("known_by", ["pid", "token"])
def test_what_a_kill_left_running_is_ended_on_resume(
    bench: Bench, monitors: ScriptedMonitors, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    interrupted(bench)
    token = os.urandom(8).hex()
    own_token = token if known_by == "token" else "no"
    child = subprocess.Popen(
        python("import signal; signal.pause()"),
        env={leftovers.TOKEN_VARIABLE: own_token},
        start_new_session=True,
    )
    try:
        ticks = monitor.process_start_ticks(child.pid)
        path = journal_path(bench.out)
        with path.open("rb+") as file:
            file.seek(0, 2)
            started = Started(
                tag="a",
                pass_no=3,
                token=token,
                pid=child.pid if known_by == "pid" else None,
                # Another process of this number must not be taken for it.
                start_ticks=ticks if known_by == "pid" else ticks - 1,
            )
            Journal(path, file).started(started)
        # Nobody looks at the cores before that.
        alive: list[int | None] = []
        occupancy = monitors.occupancy

        def look(*arguments: Any) -> Any:
            alive.append(child.poll())
            return occupancy(*arguments)

        monkeypatch.setattr(monitors, "occupancy", look)
        assert bench.run("--passes", "4", "--resume") == 0
        assert None not in alive
        assert child.wait(timeout=60) in (-signal.SIGTERM, -signal.SIGKILL)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
