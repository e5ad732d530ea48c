"""Every metric's unit, direction and meaning, in one table.

A metric that an arm reports and this table lacks is kept and shown, but ranked only where the spec states its
direction. ``MB`` is 10^6 bytes. Names that start with ``sampled.`` are what the harness saw from outside; the
rest is what the measured program says of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower", "neutral"]

SAMPLED = "sampled."

# Numbers that programs report of how they measured: kept in the run's record, no metrics.
BOOKKEEPING = frozenset(
    {
        "first_token_s",
        "threads",
        "memory_samples",
        "sampling_cpu_s",
        "sampling_share_of_a_core",
        "warm_up_rounds",
        "context_tokens",
    }
)
COLD = "cold_"


@dataclass(frozen=True)
class Metric:
    """``direction`` says which way is better. ``needs_warm_cache``: a run with an empty compile cache is
    another quantity and is left out of the statistics. ``band_pct`` is the change that ``--check`` accepts
    where the expectations file gives no band of its own; ``None``: not gated without one."""

    name: str
    unit: str
    direction: Direction
    meaning: str
    needs_warm_cache: bool = False
    band_pct: float | None = None


def _table(*rows: Metric) -> dict[str, Metric]:
    return {row.name: row for row in rows}


METRICS: dict[str, Metric] = _table(
    # speed
    Metric("tg_tps", "tokens/s", "higher", "decode: tokens after the first, over the time they took"),
    Metric("pp_tps", "tokens/s", "higher", "prefill: prompt tokens over the time to the first token"),
    Metric("ttft_ms", "ms", "lower", "from the request to its first token, tokenization excluded"),
    Metric("itl_ms_p50", "ms", "lower", "time between tokens, median"),
    Metric("itl_ms_p99", "ms", "lower", "time between tokens, 99th percentile"),
    Metric("step_ms", "ms", "lower", "wall time of one decode step", band_pct=6.0),
    Metric("ceiling_gbps", "GB/s", "higher", "read ceiling: plain loads over memory larger than the caches"),
    Metric(
        "ceiling_share", "1", "higher", "weight and KV bytes of a decode step over its time, over the ceiling"
    ),
    Metric("weight_bytes_per_token", "B", "lower", "weight bytes that one decode step reads"),
    # start
    Metric("ready_s", "s", "lower", "from the start of the process to a served token", True, 12.0),
    Metric("import_s", "s", "lower", "importing the engine", True, 12.0),
    Metric("interpreter_s", "s", "neutral", "interpreter and harness, before a peer's import begins"),
    Metric("load_s", "s", "lower", "reading the weights", True, 12.0),
    Metric("compile_s", "s", "lower", "torch.compile, or fetching what it left in the cache", True, 12.0),
    Metric("warm_up_s", "s", "lower", "warm-up runs and KV cache", True, 12.0),
    Metric("config_s", "s", "lower", "the engine's configuration, tokenizer, processes", True, 12.0),
    Metric("init_s", "s", "lower", "building the engine: configuration, load, compile, warm-up", True, 12.0),
    # memory, from the program's own marks
    Metric("rss_anon_tree_mb", "MB", "lower", "RssAnon of the process tree, settled", True, 1.5),
    Metric("peak_rss_anon_tree_mb", "MB", "lower", "highest RssAnon of the tree", True, 2.0),
    Metric(
        "pss_anon_tree_mb",
        "MB",
        "lower",
        "Pss_Anon of the tree, settled: shared pages counted once",
        True,
        1.5,
    ),
    Metric("rss_anon_at_context_mb", "MB", "lower", "RssAnon of the tree with the context filled", True, 2.0),
    Metric(
        "rss_file_tree_mb",
        "MB",
        "lower",
        "RssFile of the tree, settled: mapped files, shared ones in full",
        True,
    ),
    Metric("private_tree_mb", "MB", "lower", "Private_Clean and Private_Dirty of the tree, settled", True),
    Metric("rss_shmem_tree_mb", "MB", "lower", "RssShmem of the tree, settled", True),
    Metric("swap_tree_mb", "MB", "lower", "VmSwap of the tree, settled", True),
    Metric("rss_anon_after_trim_mb", "MB", "lower", "RssAnon of the tree after malloc_trim", True, 1.5),
    Metric("trim_mb", "MB", "neutral", "RssAnon that malloc_trim gave back"),
    # fidelity
    Metric("kl_mean_nats", "nats", "lower", "mean KL(reference || build) a token, full vocabulary"),
    Metric("top1_agreement", "1", "higher", "share of tokens whose likeliest next token is the reference's"),
    Metric("perplexity", "1", "lower", "exp of the mean negative log-probability"),
    # seen from outside
    Metric("sampled.wall_s", "s", "lower", "from fork to exit", True),
    Metric("sampled.cpu_s", "s", "lower", "CPU time of the tree, user and system", True),
    Metric(
        "sampled.rss_anon_tree_mb",
        "MB",
        "lower",
        "RssAnon of the tree in the last sample, often of a program that is ending",
        True,
    ),
    Metric(
        "sampled.peak_rss_anon_tree_mb", "MB", "lower", "highest RssAnon of the tree in a sample", True, 2.0
    ),
    Metric("sampled.peak_rss_file_tree_mb", "MB", "lower", "highest RssFile of the tree in a sample", True),
    Metric("sampled.peak_processes", "1", "lower", "most processes in the tree"),
)


def is_bookkeeping(name: str) -> bool:
    """Whether a number of this name is about the measuring and no metric."""
    return name in BOOKKEEPING or name.startswith(COLD)


def metric(name: str, declared: dict[str, Metric] | None = None) -> Metric:
    """The row of ``name``: the spec's own first, then the table's; unknown names are neutral."""
    if declared and name in declared:
        return declared[name]
    return METRICS.get(name) or Metric(
        name, "", "neutral", "reported by the arm; its direction is not declared"
    )
