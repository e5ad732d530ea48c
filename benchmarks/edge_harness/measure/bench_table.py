"""Results in the shape of llama-bench's table: one line per test, ``pp512`` and ``tg128 @ d512``."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Format = Literal["md", "csv", "json"]


@dataclass(frozen=True)
class Row:
    """``samples_ts``: tokens per second of every repetition. ``share``: of the read ceiling, where known."""

    model: str
    size_bytes: int
    engine: str
    threads: int
    batch: int
    test: str
    samples_ts: tuple[float, ...]
    step_ms: float | None = None
    itl_ms_p50: float | None = None
    itl_ms_p99: float | None = None
    share: float | None = None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples_ts)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; ``None`` with one repetition: it says nothing about spread."""
        return statistics.stdev(self.samples_ts) if len(self.samples_ts) > 1 else None


def name_of_test(kind: Literal["pp", "tg"], tokens: int, depth: int) -> str:
    """As llama-bench writes it."""
    return f"{kind}{tokens}" + (f" @ d{depth}" if depth else "")


def table(rows: Sequence[Row], form: Format) -> str:
    """All rows in one text that ends with a line break."""
    return {"md": _markdown, "csv": _csv, "json": _json}[form](rows)


def _record(row: Row) -> dict[str, object]:
    values = asdict(row)
    samples = values.pop("samples_ts")
    return values | {"avg_ts": row.mean, "stddev_ts": row.sd, "samples_ts": list(samples)}


def _json(rows: Sequence[Row]) -> str:
    return json.dumps([_record(row) for row in rows]) + "\n"


def _csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    records = [_record(row) for row in rows]
    names = list(records[0]) if records else []
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        record["samples_ts"] = " ".join(f"{sample:.4f}" for sample in row_samples(record))
        writer.writerow({name: "" if value is None else value for name, value in record.items()})
    return out.getvalue()


def row_samples(record: dict[str, object]) -> list[float]:
    """The samples of a record, typed."""
    samples = record["samples_ts"]
    assert isinstance(samples, list)
    return [float(sample) for sample in samples]


def _markdown(rows: Sequence[Row]) -> str:
    head = ("model", "size", "engine", "threads", "batch", "test", "t/s", "step ms", "p50", "p99", "ceiling")
    lines = ["| " + " | ".join(head) + " |", "| --- | ---: | --- | ---: | ---: | ---: |" + " ---: |" * 5]
    for row in rows:
        spread = "" if row.sd is None else f" ± {row.sd:.2f}"
        cells = (
            row.model,
            f"{row.size_bytes / 2**20:.2f} MiB",
            row.engine,
            str(row.threads),
            str(row.batch),
            row.test,
            f"{row.mean:.2f}{spread}",
            _number(row.step_ms),
            _number(row.itl_ms_p50),
            _number(row.itl_ms_p99),
            "" if row.share is None else f"{row.share:.0%}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
