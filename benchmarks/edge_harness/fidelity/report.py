"""Progress of a fidelity measurement on standard error, and its figures as lines of text."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.edge_harness.fidelity.measurement import Measured


class PhaseProgress:
    """A bar per phase on a terminal, a line when each one starts elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> PhaseProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase not in self._tasks:
            self._tasks[phase] = int(self._progress.add_task(phase, total=total))
            if not self._console.is_terminal:
                self._console.print(f"fidelity: {phase} ...")
        self._progress.update(self._tasks[phase], completed=done)  # type: ignore[arg-type]


def result_lines(measured: Measured) -> list[str]:
    """What was found, one figure a line, with intervals and the floor."""
    lines = []
    for path, figures in measured.paths.items():
        lines.append(f"{path}: {figures['tokens']} tokens, intervals of {figures['confidence']:.0%}")
        for name, unit in (("kl_mean_nats", " nats"), ("top1_agreement", ""), ("perplexity", "")):
            lines.append(f"  {_row(name, unit, figures['intervals'][name], figures['floor'][name])}")
        ratio = figures["intervals"]["kl_over_floor"]
        lines.append(f"  KL over floor {ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")
    for title, found in (("greedy", measured.greedy), ("bf16 floor of greedy", measured.greedy_floor)):
        if found is not None:
            lines.append(
                f"{title}: {found['exact_matches']} of {found['prompts']} prompts exact over "
                f"{found['new_tokens']} tokens, {found['mean_prefix']:.1%} before the first that differs"
            )
    return [*lines, *(f"note: {note}" for note in measured.notes)]


def _row(name: str, unit: str, found: dict[str, float], floor: dict[str, float]) -> str:
    span = f"({found['low']:.4g} to {found['high']:.4g})"
    return f"{name} {found['value']:.4g}{unit} {span}; floor {floor['value']:.4g}"
