"""Two result files: mostly reasons not to compare them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.edge_harness.artifact.schema import Artifact, Retraction, Verification
from benchmarks.edge_harness.statistics.across import UNPAIRED_NOTE, compare_artifacts, refusal
from tests.benchmarks.edge_harness import artifact_builder as build


def grid(factor: float = 1.3, seed: int = 0, **changes: object) -> Artifact:
    artifact = build.grid({"stock": 1.0, "ours": factor}, seed=seed, **changes)
    for run in artifact.runs:
        run.disturbance = build.disturbance()
    return artifact


def machine(artifact: Artifact, **changes: object) -> None:
    artifact.provenance.machine = build.machine(**changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: machine(b, kernel="6.12"), "the machines differ in kernel: 6.1.0-test and 6.12"),
        (lambda b: machine(b, cpu_flags=["avx2"]), "the machines differ in cpu_flags"),
        (lambda b: machine(b, memory_bytes=8_000_000_000), "the machines differ in memory_bytes"),
        (lambda b: setattr(b.provenance.thread_set, "cores", [0]), "the cores differ: [0, 1] and [0]"),
        (lambda b: setattr(b.provenance.thread_set, "memory_bound", False), "the memory binding differs"),
        (lambda b: setattr(b, "spec_sha256", "5" * 64), "the specs differ"),
        (lambda b: setattr(b, "kind", "probe"), "the kinds differ: grid and probe"),
        (lambda b: setattr(b, "runs", []), "no arm has runs in both"),
        (lambda b: setattr(b, "complete", False), "B is incomplete: the measurement ended before its last"),
        (
            lambda b: setattr(b, "retraction", Retraction(date="2026-01-03", reason="r", superseded_by=None)),
            "B is retracted: r",
        ),
    ],
)
def test_what_differs_is_refused(change: Callable[[Artifact], None], why: str) -> None:
    a, b = grid(), grid()
    assert refusal(a, b) is None
    change(b)
    assert (refusal(a, b) or "").startswith(why)


def test_other_software_and_a_rebooted_machine_are_not_refused() -> None:
    a, b = grid(), grid()
    b.provenance.software = build.software(git_commit="f" * 40, torch="2.14.0")
    machine(b, memory_bytes=16_000_000_000 - 50_000_000)
    assert refusal(a, b) is None


def test_probes_must_have_run_the_same_command() -> None:
    a, b = build.probe(), build.probe()
    assert refusal(a, b) is None
    b.arms[0].command = ["python", "other.py"]
    assert refusal(a, b) == "the workloads differ (commands of the arms)"


def test_tags_without_an_arm_of_their_own_are_of_the_only_model() -> None:
    a, b = build.probe(), build.probe()
    for artifact in (a, b):
        artifact.runs[0].tag = "prefill"
        artifact.arms[0].model = build.arm_provenance("x").model
    assert not any("weights" in row.comparison.sentence for row in compare_artifacts(a, b, "A", "B"))
    model = b.arms[0].model
    assert model is not None
    b.arms[0].model = model.model_copy(update={"weights_sha256": "9" * 64})
    rows = compare_artifacts(a, b, "A", "B")
    assert all(row.comparison.sentence == "not comparable because the weights differ" for row in rows)


def test_a_metric_that_an_arm_has_nowhere_has_no_row() -> None:
    a, b = build.probe(), build.probe()
    for artifact in (a, b):
        artifact.runs.append(build.run("process", 1, {"import_s": 2.0}))
    rows = {(row.tag, row.metric) for row in compare_artifacts(a, b, "A", "B")}
    assert ("process", "import_s") in rows
    assert ("probe", "import_s") not in rows
    assert ("process", "tg_tps") not in rows


def test_where_a_command_keeps_its_files_is_no_part_of_the_work() -> None:
    a, b = build.probe(), build.probe()
    a.arms[0].command = ["a/.venv/bin/python", "-m", "start", "--cache-root", "…/one", "--threads", "1"]
    b.arms[0].command = ["b/.venv/bin/python", "-m", "start", "--cache-root", "…/two", "--threads", "1"]
    assert refusal(a, b) is None
    b.arms[0].command[-1] = "2"
    assert refusal(a, b) == "the workloads differ (commands of the arms)"


def test_without_a_spec_its_default_tolerance_holds() -> None:
    a, b = build.probe(), build.probe()
    for artifact, apart in ((a, 0.0), (b, 0.04)):
        artifact.runs = [
            build.run(
                "probe",
                number,
                {"tg_tps": 60.0 + number / 10},
                verification=Verification(kind="logprob", value=-2.0 - apart, of="x"),
            )
            for number in (1, 2, 3)
        ]
    (row,) = compare_artifacts(a, b, "A", "B")
    assert row.comparison.sentence == "no difference shown"
    for run in b.runs:
        assert run.verification is not None
        run.verification.value = -2.06
    (row,) = compare_artifacts(a, b, "A", "B")
    assert "0.06 nats apart, allowed 0.05" in row.comparison.sentence


def test_a_clear_difference_is_shown_unpaired() -> None:
    rows = compare_artifacts(grid(1.0, noise=0.005), grid(1.5, seed=1, noise=0.005), "before", "after")
    ours = next(row for row in rows if (row.tag, row.metric) == ("ours", "tg_tps"))
    assert ours.comparison.sentence.startswith("ours in before is 0.6")
    assert ours.comparison.better == "ours in after"
    assert ours.comparison.note == UNPAIRED_NOTE
    assert ours.comparison.confidence == 0.99
    assert (ours.n_a, ours.n_b, ours.unit) == (6, 6, "tokens/s")
    assert (rows[0].metric, rows[1].metric) == ("tg_tps", "tg_tps")
    stock = next(row for row in rows if (row.tag, row.metric) == ("stock", "tg_tps"))
    assert stock.comparison.sentence == "no difference shown"


def test_another_model_is_not_the_same_workload() -> None:
    a, b = grid(), grid()
    model = b.arms[1].model
    assert model is not None
    model.weights_sha256 = "9" * 64
    sentences = {row.tag: row.comparison.sentence for row in compare_artifacts(a, b, "A", "B", "tg_tps")}
    assert sentences["ours"] == "not comparable because the weights differ"
    assert sentences["stock"] == "no difference shown"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda run: setattr(run, "disturbance", build.disturbance(marked=True)), "was disturbed"),
        (lambda run: setattr(run, "status", "invalid"), "a run of ours in B is invalid"),
        (lambda run: run.metrics.update(tg_tps=0.0), "figures above zero"),
        (lambda run: setattr(run.verification, "value", -9.0), "verification values disagree"),
    ],
)
def test_one_bad_run_is_enough(change: Callable[[object], None], why: str) -> None:
    a, b = grid(), grid()
    change(next(run for run in b.runs if run.tag == "ours"))
    rows = compare_artifacts(a, b, "A", "B")
    ours = next(row for row in rows if (row.tag, row.metric) == ("ours", "tg_tps"))
    assert ours.comparison.verdict == "not_comparable"
    assert why in ours.comparison.sentence


def test_few_runs_have_medians_and_no_verdict() -> None:
    a, b = (build.grid(passes=2) for _ in range(2))
    row = compare_artifacts(a, b, "A", "B")[0]
    assert row.median_a is not None
    assert "2 runs of stock in A that count, expected 3 or more" in row.comparison.sentence


def test_figures_without_a_direction_are_not_ranked() -> None:
    a, b = grid(), grid()
    for run in (*a.runs, *b.runs):
        if run.status == "ok":
            run.metrics["own"] = 5.0
    row = next(row for row in compare_artifacts(a, b, "A", "B") if row.metric == "own")
    assert (row.median_a, row.comparison.verdict) == (5.0, "not_comparable")
