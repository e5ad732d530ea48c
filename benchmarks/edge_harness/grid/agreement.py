"""Whether a run did the work that it is compared for; each question fails closed.

Did the program run what its arm declares, and does it carry the verification value that the spec asks for?
Whether two arms computed the same is a question to their runs together (statistics/verification.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from benchmarks.edge_harness.artifact.schema import Verification
from benchmarks.edge_harness.spec import Arm, Spec

_VALUE_TYPES: dict[str, tuple[type, ...]] = {
    "token_ids": (list,),
    "logprob": (float, int),
    "checksum": (str,),
}


def why_invalid(arm: Arm, spec: Spec, reported: Mapping[str, Any]) -> str | None:
    """Why a run that ended well must not be used, or ``None``."""
    reason = undeclared(arm.declares, reported.get("ran"))
    if reason is None and spec.verification != "ignored":
        verification = read_verification(reported)
        if isinstance(verification, str):
            reason = verification
        elif verification is None and spec.verification == "required":
            reason = "no verification value, and the spec requires one"
    return reason


def undeclared(declares: Mapping[str, Any], ran: object) -> str | None:
    """How what ran differs from what the arm declares, or ``None``."""
    if not declares:
        return None
    if not isinstance(ran, Mapping):
        return f"declares {_pairs(declares)}, and the program does not report what ran"
    wrong = {
        name: value for name, value in declares.items() if name not in ran or not _same(ran[name], value)
    }
    if not wrong:
        return None
    found = (f"{name} {_text(ran[name])}" if name in ran else f"{name} is not reported" for name in wrong)
    return f"declares {_pairs(wrong)}; ran: {', '.join(found)}"


def read_verification(reported: Mapping[str, Any]) -> Verification | str | None:
    """The reported verification value; a text says why what is there is not one."""
    value = reported.get("verification")
    if value is None:
        return None
    try:
        found = Verification.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        return f"verification.{'.'.join(str(part) for part in first['loc'][:1])}: {first['msg']}"
    if not isinstance(found.value, _VALUE_TYPES[found.kind]):
        return f"verification.value: a {found.kind} cannot be of type {type(found.value).__name__}"
    return found


def _same(found: object, declared: object) -> bool:
    """4 is 4.0, but neither ``True`` nor ``"4"``."""
    return isinstance(found, bool) == isinstance(declared, bool) and found == declared


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
