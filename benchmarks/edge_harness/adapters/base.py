"""What an adapter is: how one engine becomes an arm of the grid.

An arm of a spec names an adapter and a model; the adapter turns it into a command line. The program behind it
runs in a process of its own (of its own environment, where it has one), does the arm's workload, and prints
one JSON object as its last line of output: numbers are metrics (``metrics.py`` names them), ``verification``,
``ran``, ``model``, ``peer`` and ``phases`` are what the artifact keeps beside them.

To add an engine:

1. Write ``adapters/<engine>.py`` with a class that has the members of :class:`Adapter`, and end it with
   ``ADAPTER = TheClass()``. The file is imported by the harness, so it imports nothing of the engine. For an
   engine with a Python environment of its own, :class:`~.environment_adapter.EnvironmentAdapter` is it.
2. Write its program, ``adapters/<engine>_worker.py``: a function that loads the engine and returns the eight
   members of :class:`~.workload.Engine`, handed to :func:`.worker.main`. Every metric follows from these;
   ``worker.py`` and ``workload.py`` need the standard library alone, so they run in any environment.
3. Add one line to ``registry.py``; an engine that has to be built gets a recipe in ``recipes.py``, whose
   ``run_here`` stays empty until its program has run.

An adapter never falls back: where its engine is not there or cannot run the arm, :meth:`Adapter.unavailable`
says so in one line, with the remedy, and the arm is recorded as unavailable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from benchmarks.edge_harness.artifact.schema import Peer
from benchmarks.edge_harness.spec import Arm
from vllm_omni.errors import OmniError


@runtime_checkable
class Adapter(Protocol):
    """One engine. Every method is cheap: nothing is started, nothing of the engine is imported."""

    @property
    def name(self) -> str:
        """As a spec writes it under ``adapter``."""

    def unavailable(self, arm: Arm) -> str | None:
        """Why ``arm`` cannot run here, one line with the remedy; ``None`` when it can. Raises
        :class:`OmniError` for an arm that could run nowhere (an option that does not exist)."""

    def command(self, arm: Arm) -> list[str]:
        """The program and its arguments. It obeys the metric contract."""

    def environment(self, arm: Arm) -> dict[str, str]:
        """Variables to add to the child's environment; the arm's own ``env`` comes on top."""

    def peer(self, arm: Arm) -> Peer:
        """Which build of the engine runs."""


def check_options(arm: Arm, known: dict[str, type]) -> None:
    """Raise :class:`OmniError` for an option of ``arm`` that ``known`` (name to type) does not list."""
    for name, value in arm.options.items():
        if name not in known:
            expected = ", ".join(sorted(known)) or "none"
            raise OmniError(f"arm {arm.tag}: options.{name}: expected one of {expected}")
        # Not isinstance: True is an int to it, and 'threads = true' is a mistake.
        if type(value) is not known[name]:
            expected = known[name].__name__
            raise OmniError(f"arm {arm.tag}: options.{name}: expected {expected}, found {value!r}")


def required_model(arm: Arm) -> str:
    """The arm's model. Raises :class:`OmniError` where the spec names none."""
    if not arm.model:
        raise OmniError(f"arm {arm.tag}: model: expected the path of a model, found none")
    return arm.model


def model_path(arm: Arm) -> Path:
    """The arm's model as a path that holds from any working folder."""
    return Path(required_model(arm)).expanduser().absolute()
