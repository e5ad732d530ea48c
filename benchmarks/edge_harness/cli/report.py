"""``report``: result files as one page, as Markdown or as CSV."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from benchmarks.edge_harness.report.load import Source


class Format(StrEnum):
    HTML = "html"
    MARKDOWN = "markdown"
    CSV = "csv"


def run(
    places: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR...", help="Results, folders searched whole.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A new file [default: report.html; the other formats: standard output]"
        ),
    ] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="[default: as the name of --out says, else html]")
    ] = None,
    title: Annotated[str, typer.Option(help="The heading.")] = "Edge harness report",
    force: Annotated[bool, typer.Option("--force", help="Replace --out where it exists.")] = False,
) -> int:
    """Show result files: one self-contained page, Markdown tables, or every figure as CSV.

    report results/ --out report.html
    report results/decode.json --format markdown
    report results/ --format csv > figures.csv
    """
    from rich.console import Console

    from benchmarks.edge_harness.report.load import load

    kind = format_ or _format_of(out)
    if out is None and kind is Format.HTML:
        out = Path("report.html")
    if out is not None:
        _refuse_to_lose(out, places, force)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with console.status("reading result files"):
        sources = load(places)
        text = _render(kind, sources, title)
    shown = [source for source in sources if source.problem is None]
    for source in sources:
        if source.problem is not None:
            console.print(f"not shown: {source.name}: {source.problem}", style="yellow")
    if out is None:
        print(text, end="")
        return 0
    _write(out, text)
    print(f"{out}: {len(shown)} {'result' if len(shown) == 1 else 'results'}")
    return 0


def _format_of(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.lower()
    return {".md": Format.MARKDOWN, ".csv": Format.CSV}.get(suffix, Format.HTML)


def _render(kind: Format, sources: list[Source], title: str) -> str:
    from benchmarks.edge_harness.report.csv_rows import csv_rows
    from benchmarks.edge_harness.report.markdown import markdown
    from benchmarks.edge_harness.report.page import page

    if kind is Format.CSV:
        return csv_rows(sources)
    return page(sources, title) if kind is Format.HTML else markdown(sources, title)


def _refuse_to_lose(out: Path, places: list[Path], force: bool) -> None:
    """A report can be made again; a result cannot."""
    from vllm_omni.errors import OmniError

    if any(place.resolve() == out.resolve() for place in places):
        raise OmniError(f"--out {out}: expected another file than the result that it shows")
    if out.suffix == ".json":
        raise OmniError(f"--out {out}: expected a name for a report, found that of a result file")
    if out.is_dir():
        raise OmniError(f"--out {out}: expected a file, found a folder")
    if out.exists() and not force:
        raise OmniError(f"--out {out}: expected a new file, found one; --force replaces it")


def _write(out: Path, text: str) -> None:
    """Whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
