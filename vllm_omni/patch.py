"""What is changed in other people's code, as data: one record per symbol, one ordered tuple of records.

A patch is the last resort, after an entry point, a public registry and an insertion into a list. It wraps and
never rewrites, does nothing at import, is a no-op the second time, and is left out where the upstream source
is not the one that it was written for.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

_log = logging.getLogger("vllm.omni_edge")

# Set on every wrapper: holds the symbol that it wraps.
WRAPPED_ATTRIBUTE = "_vllm_omni_edge_wraps"

# "command": our commands, before vLLM is imported. "engine": every vLLM process, from the plugin.
Stage = Literal["command", "engine"]


@dataclass(frozen=True)
class Proof:
    """Evidence from running the symbol before and after: ``needed`` without the patch, ``effective`` with
    it."""

    needed: bool
    effective: bool
    detail: str


@dataclass(frozen=True)
class Patch:
    """One changed symbol.

    ``target`` is the symbol that is replaced, ``source`` the upstream symbol whose text the patch was written
    against (they differ where the target is not vLLM's), ``source_sha256`` the digest of that text.
    """

    target: str
    stage: Stage
    why: str
    how: str
    upstream: str
    remove_when: str
    tested_versions: str
    source: str
    source_sha256: str
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    prove: Callable[[], Proof]

    def apply(self) -> None:
        """Replace the target by its wrapper. The second call does nothing."""
        owner, name = _owner(self.target)
        current = inspect.getattr_static(owner, name)
        if hasattr(current, WRAPPED_ATTRIBUTE):
            return
        wrapper = self.wrap(current)
        setattr(wrapper, WRAPPED_ATTRIBUTE, current)
        setattr(owner, name, wrapper)

    def is_applied(self) -> bool:
        return hasattr(resolve(self.target), WRAPPED_ATTRIBUTE)

    def undo(self) -> None:
        """Put the original back: for tests and for proofs."""
        owner, name = _owner(self.target)
        original = getattr(inspect.getattr_static(owner, name), WRAPPED_ATTRIBUTE, None)
        if original is not None:
            setattr(owner, name, original)


@dataclass(frozen=True)
class Outcome:
    """What became of a patch in this process; ``reason`` says why it was left out, empty where it was
    applied."""

    patch: Patch
    reason: str = ""

    @property
    def applied(self) -> bool:
        return not self.reason


def resolve(dotted: str) -> Any:
    """The object behind a dotted name. Raises ``LookupError`` naming the part that does not exist."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and module_name.startswith(error.name):
                continue
            raise
        for part in parts[length:]:
            if not hasattr(found, part):
                raise LookupError(f"{dotted}: {module_name} has no {part}")
            found = getattr(found, part)
        return found
    raise LookupError(f"{dotted}: no such module")


def source_digest(dotted: str) -> str:
    """SHA-256 of the source text of an upstream symbol, of the original where it is wrapped by us."""
    found = resolve(dotted)
    return hashlib.sha256(inspect.getsource(getattr(found, WRAPPED_ATTRIBUTE, found)).encode()).hexdigest()


def reason_to_leave_out(patch: Patch, vllm_version: str) -> str:
    """Why ``patch`` must not be applied to this vLLM; empty where it may."""
    # The local part ("+cpu") names the build, not the source.
    public = vllm_version.partition("+")[0]
    if not SpecifierSet(patch.tested_versions).contains(public, prereleases=True):
        return f"written for vLLM {patch.tested_versions}, this is {vllm_version}"
    try:
        digest = source_digest(patch.source)
        resolve(patch.target)
    except (LookupError, OSError, TypeError) as error:
        return str(error)
    if digest != patch.source_sha256:
        return f"the source of {patch.source} is not the one that it was written for"
    return ""


def patches() -> tuple[Patch, ...]:
    """All patches, in the order in which they are applied."""
    from vllm_omni.patches import distribution_version, model_loader, saved_model, vocab_parallel_embedding

    return (
        distribution_version.PATCH,
        vocab_parallel_embedding.PATCH,
        model_loader.PATCH,
        saved_model.PATCH,
    )


# What the latest `apply_patches` of each stage did in this process.
_outcomes: dict[Stage, list[Outcome]] = {}


def left_out(stage: Stage) -> list[Outcome]:
    """The patches of a stage that this process asked for and does without."""
    return [outcome for outcome in _outcomes.get(stage, ()) if not outcome.applied]


def apply_patches(stage: Stage, vllm_version: str) -> list[Outcome]:
    """Apply the patches of a stage. Each that is left out is named in a warning with its reason, and stays
    known to :func:`left_out`."""
    outcomes = []
    for patch in patches():
        if patch.stage != stage:
            continue
        reason = reason_to_leave_out(patch, vllm_version)
        if reason:
            _log.warning("patch of %s left out: %s", patch.target, reason)
        else:
            patch.apply()
        outcomes.append(Outcome(patch, reason))
    _outcomes[stage] = outcomes
    return outcomes


def _owner(dotted: str) -> tuple[Any, str]:
    owner, _, name = dotted.rpartition(".")
    return resolve(owner) if "." in owner else importlib.import_module(owner), name
