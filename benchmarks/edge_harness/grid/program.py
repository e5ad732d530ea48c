"""What an arm of the spec comes to."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.edge_harness.artifact.schema import Peer


@dataclass(frozen=True)
class Program:
    """What an arm comes to: a command line with its variables, or why there is none."""

    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    peer: Peer | None = None
    unavailable: str | None = None
