"""The schema of a result file. A key that is missing makes the file invalid; ``None`` means "not to be had".

Three kinds share the frame: ``grid`` (interleaved runs of arms), ``probe`` (one program's measurement) and
``fidelity``. Everything needed to judge a figure is inside; nothing names a user's folder.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.edge_harness.spec import Spec

FORMAT: Literal["edge-harness/1"] = "edge-harness/1"


class Record(BaseModel):
    """Unknown keys are errors, so that two versions of the harness cannot be confused."""

    model_config = ConfigDict(extra="forbid")


class Cgroup(Record):
    version: Literal[1, 2] | None
    cpu_quota_cores: float | None
    memory_limit_bytes: int | None
    cpuset: str | None


class NumaNode(Record):
    node: int
    cpus: str
    memory_bytes: int | None


class Machine(Record):
    cpu_model: str | None
    cpu_family_model_stepping: list[str | None]
    microcode: str | None
    cpu_flags: list[str]
    sockets: int | None
    physical_cores: int | None
    logical_cpus: int
    smt_active: bool | None
    numa_nodes: list[NumaNode]
    cache_bytes: dict[str, int]
    """By level and kind: ``L1d``, ``L2``, ``L3``, of the first core."""
    governor: str | None
    max_khz: int | None
    transparent_hugepages: str | None
    kernel: str
    hypervisor: str | None
    memory_bytes: int
    swap_bytes: int
    cgroup: Cgroup


class Load(Record):
    """The machine at one moment."""

    time_utc: str
    load_average: list[float]
    available_bytes: int
    busy_cores: dict[str, float] | None
    """Core number to busy share (0..1) of the cores under test, by processes that are not the harness's."""


class Software(Record):
    git_commit: str | None
    git_dirty: bool | None
    rustc: str | None
    rust_profile: str | None
    library_sha256: str | None
    layout_version: int | None
    isa_level: str | None
    vllm_omni_edge: str
    python: str
    torch: str | None
    vllm: str | None
    vllm_distribution: str | None
    libc: str
    settings: dict[str, str]
    """Our own variables that were set."""
    environment: dict[str, str]
    """Allow-listed variables that change what is measured; never secrets."""


class Monitor(Record):
    """What watching cost."""

    samples: int
    cpu_s: float
    wall_s: float
    share_of_a_core: float


class ThreadSet(Record):
    """Where the harness put the processes, and the memory node it bound them to."""

    cores: list[int]
    memory_nodes: list[int] | None
    memory_bound: bool
    note: str | None


class Provenance(Record):
    """Of the whole file; what only one arm knows is in :class:`ArmProvenance`."""

    machine: Machine
    load_before: Load
    load_after: Load
    software: Software
    thread_set: ThreadSet
    monitor: Monitor | None


class ModelIdentity(Record):
    """Path-free: the folder's or file's own name, and digests of what is inside."""

    id: str
    config_sha256: str | None
    weights_sha256: str
    weights_bytes: int
    quantization: str | None
    head_bits: int | None


class Peer(Record):
    name: str
    version: str | None
    commit: str | None
    build_flags: list[str]


class ArmProvenance(Record):
    """``kernels``: name of a kernel to the number of layers that ran it. ``process``: seen from outside."""

    tag: str
    adapter: str | None
    command: list[str]
    env: dict[str, str]
    model: ModelIdentity | None
    kernels: dict[str, int] | None
    peer: Peer | None
    allocator: str | None
    openmp_runtimes: list[str]
    threads: int | None
    """Most threads seen in the tree at once."""
    unavailable: str | None
    allowed_cores: list[int] | None = None
    """Every core that a thread of any run was seen to be allowed on."""


class Verification(Record):
    """What an arm computed, so that arms that disagree are not ranked.

    ``token_ids``: greedy tokens, compared exactly. ``logprob``: mean log-probability of a fixed text, held
    together within the spec's tolerance. ``checksum``: any string, compared exactly.
    """

    kind: Literal["token_ids", "logprob", "checksum"]
    value: list[int] | float | str
    of: str
    """What was computed; values of different things are never compared."""


class Disturbance(Record):
    """What else happened on the cores during a run; shares are of the run's core time, 0..1."""

    steal: float
    foreign: float
    foreign_processes: list[str]
    throttled_s: float
    marked: bool
    """Whether it was enough to distrust the run."""
    worst_core_foreign: float | None = None
    """Of the core that foreign processes took most of, what they took."""


class MemoryPoint(Record):
    t_s: float
    rss_anon_mb: float
    rss_file_mb: float
    processes: int


class Phase(Record):
    t_s: float
    name: str
    rss_anon_mb: float | None = None
    pss_anon_mb: float | None = None


class Run(Record):
    """One fresh process. ``reported`` is the child's last JSON object as it came."""

    tag: str
    pass_no: int = Field(ge=1)
    position: int = Field(ge=1)
    """Place in the order of its pass, from 1."""
    cold_cache: bool
    started_utc: str
    wall_s: float
    exit_code: int | None
    """``None``: killed after the time limit, or never started."""
    status: Literal["ok", "failed", "invalid"]
    reason: str | None
    metrics: dict[str, float]
    reported: dict[str, Any]
    verification: Verification | None
    disturbance: Disturbance | None
    load_before: list[float]
    load_after: list[float]
    memory: list[MemoryPoint]
    phases: list[Phase]
    # Of a run that did not go well.
    stderr_tail: str | None


class MetricSummary(Record):
    """Over the runs that count: status ok, warm where the metric wants it."""

    tag: str
    metric: str
    n: int
    median: float
    mean: float
    sd: float | None
    minimum: float
    maximum: float
    marked_runs: int


class Comparison(Record):
    """``ratio`` of arm ``a`` to arm ``b`` with its interval; only ``sentence`` may be quoted."""

    metric: str
    a: str
    b: str
    pairs: int
    ratio: float | None
    low: float | None
    high: float | None
    verdict: Literal["a_higher", "a_lower", "no_difference", "not_comparable"]
    better: str | None
    """Tag of the better arm, where there is one."""
    sentence: str
    confidence: float | None = None
    """Of the interval, corrected for the number of comparisons."""
    note: str = ""
    """What to know about the pairs: how many are missing or disturbed."""


class NoiseFloor(Record):
    """From two identical arms: how far apart they come by chance."""

    metric: str
    pairs: int
    ratio: float
    low: float
    high: float
    half_width_pct: float
    sd_pct: float


class Check(Record):
    tag: str
    metric: str
    status: Literal["ok", "regression", "improved", "unlisted", "not_gated", "missing"]
    measured: float | None
    expected: float | None
    drift_pct: float | None
    band_pct: float | None
    why: str


class Retraction(Record):
    date: str
    reason: str = Field(min_length=1)
    superseded_by: str | None


class Artifact(Record):
    """One result file."""

    format: Literal["edge-harness/1"]
    kind: Literal["grid", "probe", "fidelity"]
    title: str
    notes: list[str]
    """What must be known before a figure is used: shown above everything else."""
    complete: bool
    created_utc: str
    command: list[str]
    exit_code: int
    spec: Spec | None
    spec_sha256: str | None
    metric: str | None
    provenance: Provenance
    arms: list[ArmProvenance]
    runs: list[Run]
    summaries: list[MetricSummary]
    comparisons: list[Comparison]
    noise_floor: list[NoiseFloor]
    checks: list[Check]
    result: dict[str, Any] | None
    """A probe's own record, beyond metrics."""
    rules: int | None = None
    """Of a grid: which rules its figures follow (grid/figures.py); ``None``: the first."""
    refusal: str | None = None
    """Why no two arms may be compared at all."""
    retraction: Retraction | None = None
