"""Grids of scripted arms: what is on record of every way to fail, in which order, and what goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.edge_harness.grid import runner
from benchmarks.edge_harness.grid.assemble import published
from benchmarks.edge_harness.grid.child import Outcome
from benchmarks.edge_harness.grid.disturbance import disturbance
from benchmarks.edge_harness.grid.journal import Entry, Journal
from benchmarks.edge_harness.grid.monitors import CoresSeen, MemorySeen
from benchmarks.edge_harness.grid.order import Slot
from benchmarks.edge_harness.grid.program import Program
from benchmarks.edge_harness.grid.runner import Interrupted, Plan, Progress, run_grid
from benchmarks.edge_harness.spec import Spec
from tests.benchmarks.edge_harness.grid.scripted import COMPILES, ScriptedMonitors, entry, here, python
from tests.benchmarks.edge_harness.grid.test_journal import header


def plan(folder: Path, arms: dict[str, Any], **spec: Any) -> Plan:
    """``arms``: tag to a line of Python, or to the whole arm."""
    listed = [
        {"tag": tag} | (arm if isinstance(arm, dict) else {"command": python(arm)})
        for tag, arm in arms.items()
    ]
    made = Spec.model_validate({"arms": listed, "metric": "m", "passes": 1, "settle_s": 0} | spec)
    programs = {
        arm.tag: Program(list(arm.command) if arm.command else [], dict(arm.env), unavailable=arm.unavailable)
        for arm in made.arms
    }
    assert made.metric is not None
    return Plan(made, made.metric, here(), programs, folder / "work")


class Log(Progress):
    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished_runs: list[tuple[int, int]] = []

    def starting(self, slot: Slot, done: int, total: int) -> None:
        self.started.append(f"{slot.pass_no}{slot.tag}")

    def finished(self, entry: Entry, done: int, total: int) -> None:
        self.finished_runs.append((done, total))


def grid(
    folder: Path,
    made: Plan,
    *,
    done: Sequence[Entry] = (),
    monitors: ScriptedMonitors | None = None,
    progress: Progress | None = None,
    pauses: list[float] | None = None,
) -> list[Entry]:
    journal = Journal.create(folder / "journal", header())
    entries = list(done)
    try:
        run_grid(
            made,
            journal,
            entries,
            monitors or ScriptedMonitors(),
            progress or Progress(),
            sleep=(pauses if pauses is not None else []).append,
        )
    finally:
        journal.close()
    _, recorded = Journal.resume(folder / "journal", header())
    assert [*done, *recorded.entries] == entries
    return entries


def test_runs_are_made_in_order_with_pauses_between(tmp_path: Path) -> None:
    log, pauses = Log(), []
    arms = dict.fromkeys("ABC", "print('{\"m\": 1}')")
    made = grid(tmp_path, plan(tmp_path, arms, passes=2, settle_s=1.5), progress=log, pauses=pauses)
    order = ["1A", "1B", "1C", "2A", "2C", "2B"]
    assert log.started == order
    assert [f"{found.run.pass_no}{found.run.tag}" for found in made] == order
    assert [found.run.position for found in made] == [1, 2, 3, 1, 2, 3]
    assert log.finished_runs == [(number, 6) for number in range(1, 7)]
    assert pauses == [1.5] * 5


WAYS_TO_FAIL = {
    "ok": (
        "print('noise'); print('{\"m\": 2, \"x\": 3}'); import sys; print('noise', file=sys.stderr)",
        None,
    ),
    "crash": (
        "import sys; print('{\"m\": 2}'); print('why', file=sys.stderr); raise SystemExit(3)",
        "exit code 3: why",
    ),
    "silent": ("", "no JSON object on standard output"),
    "other": ('print(\'{"x": 3, "a": 1}\')', "no metric m in the output, which has a, x"),
    "nan": ("print('{\"m\": NaN}')", "m: expected a number, found 'NaN'"),
    "text": ('print(\'{"m": "2"}\')', "m: expected a number, found '2'"),
    "cut": ("print('{\"m\": 1}\\n{\"m\": 2', end='')", "the last JSON object on standard output is cut off"),
    "empty": ("print('{}')", "no metric m in the output, which has none"),
    "hang": ("import signal; signal.pause()", "killed after the time limit of 5 s"),
    "absent": (
        {"command": ["no-such-program"]},
        "could not start no-such-program: No such file or directory",
    ),
    "last": ("print('{\"m\": 2}')", None),
}


def test_every_way_to_fail_is_on_record_and_the_rest_goes_on(tmp_path: Path) -> None:
    arms = {tag: arm for tag, (arm, _) in WAYS_TO_FAIL.items()}
    made = grid(tmp_path, plan(tmp_path, arms, timeout_s=5))
    assert {found.run.tag: found.run.reason for found in made} == {
        tag: reason for tag, (_, reason) in WAYS_TO_FAIL.items()
    }
    runs = {found.run.tag: found.run for found in made}
    assert {tag for tag, run in runs.items() if run.status == "ok"} == {"ok", "last"}
    assert {run.status for run in runs.values()} == {"ok", "failed"}
    assert runs["ok"].metrics["x"] == 3.0
    assert runs["ok"].reported == {"m": 2, "x": 3}
    # What a program said before it failed is kept.
    assert runs["crash"].reported == {"m": 2}
    assert runs["crash"].stderr_tail == "why\n"
    # Of a run that went well no log is kept.
    assert runs["ok"].stderr_tail is None
    assert runs["absent"].metrics == {}
    assert runs["absent"].disturbance is None
    assert runs["hang"].exit_code is None


def test_a_sampled_metric_needs_no_output(tmp_path: Path) -> None:
    """Any command can be an arm."""
    made = grid(tmp_path, plan(tmp_path, {"a": {"command": ["true"]}}, metric="sampled.wall_s"))
    assert made[0].run.status == "ok"
    assert made[0].run.metrics.keys() == {"sampled.wall_s", "sampled.cpu_s"}
    assert made[0].run.reported == {}


def test_what_an_arm_says_of_sampled_metrics_is_not_believed(tmp_path: Path) -> None:
    made = grid(
        tmp_path, plan(tmp_path, {"a": "print('{\"sampled.wall_s\": 1e-9}')"}, metric="sampled.wall_s")
    )
    assert made[0].run.metrics["sampled.wall_s"] > 1e-6


def test_what_was_sampled_becomes_metrics(tmp_path: Path) -> None:
    memory = MemorySeen(
        points=((0.0, 1_000_000, 5_000_000, 1), (0.1, 3_000_000, 6_000_000, 2)),
        last_anon_bytes=2_000_000,
        peak_anon_bytes=3_000_000,
        peak_file_bytes=6_000_000,
        peak_processes=2,
        threads=9,
        samples=4,
        own_cpu_s=0.25,
    )
    made = grid(tmp_path, plan(tmp_path, {"a": "print('{\"m\": 1}')"}), monitors=ScriptedMonitors(memory))
    metrics = made[0].run.metrics
    assert {name: metrics[name] for name in metrics if "rss" in name or "processes" in name} == {
        "sampled.rss_anon_tree_mb": 2.0,
        "sampled.peak_rss_anon_tree_mb": 3.0,
        "sampled.peak_rss_file_tree_mb": 6.0,
        "sampled.peak_processes": 2.0,
    }
    assert [point.rss_anon_mb for point in made[0].run.memory] == [1.0, 3.0]
    assert (made[0].seen.threads, made[0].seen.monitor_samples) == (9, 4)
    assert made[0].seen.monitor_cpu_s >= 0.25


def outcome(**changes: Any) -> Outcome:
    values = {
        "started_utc": "",
        "wall_s": 1.0,
        "exit_code": 0,
        "problem": None,
        "stdout": Path(),
        "cpu_s": 0.0,
    }
    return Outcome(**(values | {"stderr_tail": None} | changes))


def test_memory_over_time_is_thinned_and_keeps_its_peak() -> None:
    points = tuple((number * 0.1, number % 7, 0, 1) for number in range(10_000))
    peak = (500.05, 99_000_000, 1, 3)
    kept = runner._memory(outcome(memory=MemorySeen(points=(*points[:5000], peak, *points[5000:]))))
    assert len(kept) <= runner.MEMORY_POINTS
    assert max(point.rss_anon_mb for point in kept) == 99.0
    assert [point.t_s for point in kept] == sorted(point.t_s for point in kept)


@pytest.mark.parametrize(
    ("seen", "marked"),
    [
        (CoresSeen(), False),
        (CoresSeen(steal=0.05, foreign=0.05), False),
        (CoresSeen(steal=0.051), True),
        (CoresSeen(foreign=0.051), True),
        # One of 24 cores, wholly.
        (CoresSeen(foreign=1 / 24, worst_core=1.0), True),
        (CoresSeen(foreign=0.02, worst_core=0.25), False),
        # Of the four seconds of two cores.
        (CoresSeen(throttled_s=0.21), True),
        (CoresSeen(throttled_s=0.19), False),
    ],
)
def test_disturbed_runs_are_marked(seen: CoresSeen, marked: bool) -> None:
    found = disturbance(seen, wall_s=2.0, cores=2)
    assert found is not None
    assert found.marked is marked


@pytest.mark.parametrize(("wall_s", "marked"), [(0.1, False), (1.0, True)])
def test_a_tick_of_the_clock_does_not_mark_a_short_run(wall_s: float, marked: bool) -> None:
    found = disturbance(CoresSeen(foreign=0.1, worst_core=0.3), wall_s=wall_s, cores=1)
    assert found is not None
    assert found.marked is marked


def test_a_report_that_is_cut_off_fails_whatever_was_sampled(tmp_path: Path) -> None:
    made = grid(tmp_path, plan(tmp_path, {"a": "print('{\"m\": 1', end='')"}, metric="sampled.wall_s"))
    assert (made[0].run.status, made[0].run.reason) == (
        "failed",
        "the last JSON object on standard output is cut off",
    )


def test_a_program_that_leaves_its_cores_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = here().cores[0]
    monkeypatch.setattr(
        "benchmarks.edge_harness.grid.library_watch.affinity_of", lambda pid: ({first, first + 1}, 1)
    )
    made = grid(tmp_path, plan(tmp_path, {"a": "print('{\"m\": 1}')"}))
    assert made[0].seen.allowed_cores == [first, first + 1]
    assert made[0].run.status == "invalid"
    assert made[0].run.reason == (
        f"a thread could run on cores {first + 1}, outside --cores {first}: nothing was watched there"
    )


def test_a_run_is_on_record_before_it_has_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def killed(child: Any, monitors: Any, started: Any, starting: Any) -> Outcome:
        starting()
        seen.append((tmp_path / "journal").read_text())
        raise SystemExit(1)

    monkeypatch.setattr(runner, "run_child", killed)
    with pytest.raises(Interrupted):
        grid(tmp_path, plan(tmp_path, {"a": ""}))
    last = json.loads(seen[0].splitlines()[-1])["started"]
    assert (last["tag"], last["pid"], len(last["token"])) == ("a", None, 32)


def test_the_programs_digest_knows_folders_that_a_published_spec_hides(tmp_path: Path) -> None:
    def digest(model: str) -> str:
        return plan(tmp_path, {"a": {"command": ["true"], "model": model}}).programs_sha256

    one, other = ("/".join(("", "home", name, "m")) for name in ("x", "y"))
    assert published(plan(tmp_path, {"a": {"command": ["true"], "model": one}}).spec) == published(
        plan(tmp_path, {"a": {"command": ["true"], "model": other}}).spec
    )
    assert digest(one) == digest(one)
    assert digest(one) != digest(other)


def test_what_ran_instead_of_what_was_declared_is_invalid(tmp_path: Path) -> None:
    code = 'print(\'{"m": 1, "ran": {"head_bits": 16}}\')'
    arm = {"command": python(code), "declares": {"head_bits": 8}}
    made = grid(tmp_path, plan(tmp_path, {"a": arm}))
    assert (made[0].run.status, made[0].run.reason) == ("invalid", "declares head_bits 8; ran: head_bits 16")


def test_verification_and_phases_are_read(tmp_path: Path) -> None:
    code = """
import json
print(json.dumps({
    "m": 1,
    "verification": {"kind": "token_ids", "value": [5, 6], "of": "greedy"},
    "phases": [
        {"t_s": 1, "name": "load", "rss_anon_mb": 2.5, "note": "x"},
        {"name": "no time"}, 3, {"t_s": "NaN", "name": "x"},
    ],
    "half": "\\ud800",
}))"""
    run = grid(tmp_path, plan(tmp_path, {"a": code}))[0].run
    assert run.verification is not None
    assert run.verification.value == [5, 6]
    assert [(phase.name, phase.t_s, phase.rss_anon_mb) for phase in run.phases] == [("load", 1.0, 2.5)]


def test_every_arm_has_a_cache_that_is_cold_until_it_has_run_well(tmp_path: Path) -> None:
    """The arm crashes in its first run: the second finds nothing of what that left."""
    code = """
import os, pathlib
folder = pathlib.Path(os.environ["VLLM_CACHE_ROOT"])
runs = folder / "runs"
before = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (before + 1))
print('{"m": %d}' % before)
"""
    crash = f"""
marker = pathlib.Path({str(tmp_path / "crashed")!r})
if not marker.exists():
    marker.touch()
    raise SystemExit(1)
"""
    arms = {"a": code + crash, "b": code}
    made = grid(tmp_path, plan(tmp_path, arms, passes=3))
    seen = {
        tag: [(found.run.cold_cache, found.run.reported["m"]) for found in made if found.run.tag == tag]
        for tag in "ab"
    }
    assert seen == {"a": [(True, 0), (True, 0), (False, 1)], "b": [(True, 0), (False, 1), (False, 2)]}


def test_an_arms_own_variables_are_last(tmp_path: Path) -> None:
    code = 'import os; print(\'{"m": 1, "root": "%s"}\' % os.environ[\'VLLM_CACHE_ROOT\'])'
    arm = {"command": python(code), "env": {"VLLM_CACHE_ROOT": "mine"}}
    assert grid(tmp_path, plan(tmp_path, {"a": arm}))[0].run.reported["root"] == "mine"


def test_an_unavailable_arm_never_runs(tmp_path: Path) -> None:
    arms = {"a": "print('{\"m\": 1}')", "later": {"unavailable": "not there yet"}}
    made = grid(tmp_path, plan(tmp_path, arms, passes=2))
    assert [found.run.tag for found in made] == ["a", "a"]
    assert plan(tmp_path, {"later": {"unavailable": "not there yet"}}).slots == []


def test_what_is_on_record_is_not_run_again(tmp_path: Path) -> None:
    log = Log()
    arms = dict.fromkeys("AB", COMPILES + "print('{\"m\": 1}')")
    done = [entry("A", 1), entry("B", 1, status="failed", reason="x", exit_code=1), entry("B", 2)]
    made = grid(tmp_path, plan(tmp_path, arms, passes=2), done=done, progress=log)
    assert log.started == ["2A"]
    assert len(made) == 4
    # The caches were lost with the work folder.
    assert made[-1].run.cold_cache


@pytest.mark.parametrize(("stop", "exit_code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_grid_keeps_what_has_finished(
    tmp_path: Path, stop: BaseException, exit_code: int
) -> None:
    class Stop(Log):
        def starting(self, slot: Slot, done: int, total: int) -> None:
            if done == 1:
                raise stop

    journal = Journal.create(tmp_path / "journal", header())
    entries: list[Entry] = []
    made = plan(tmp_path, dict.fromkeys("AB", "print('{\"m\": 1}')"), passes=2)
    with pytest.raises(Interrupted) as error:
        run_grid(made, journal, entries, ScriptedMonitors(), Stop(), sleep=lambda pause_s: None)
    journal.close()
    assert error.value.exit_code == exit_code
    assert [found.run.tag for found in entries] == ["A"]


def test_no_folder_of_a_user_is_on_record(tmp_path: Path) -> None:
    secret = "/".join(("", "home", "somebody", "models", "x"))
    code = f"""
import sys
print('{{"m": 1, "list": [{{"at": "{secret}"}}]}}')
print("{secret}: not found", file=sys.stderr)
raise SystemExit(1)"""
    made = grid(tmp_path, plan(tmp_path, {"a": code}))[0]
    assert "somebody" not in made.model_dump_json()
    assert made.run.reported["list"] == [{"at": "…/x"}]
    assert made.run.reason == "exit code 1: …/x: not found"
