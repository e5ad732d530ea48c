"""Lists on the command line. Each raises :class:`OmniError` naming the option and what it expects."""

from __future__ import annotations

from vllm_omni.errors import OmniError


def integers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OmniError(f"{option} {text}: expected integers separated by commas") from None


def positive(text: str, option: str) -> list[int]:
    found = integers(text, option)
    if min(found) < 1:
        raise OmniError(f"{option} {text}: expected positive integers")
    return found


def names(text: str, option: str, known: tuple[str, ...]) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in known:
            raise OmniError(f"{option} {name}: expected some of {','.join(known)}")
    return list(dict.fromkeys(found))


def shapes_of(text: str) -> list[tuple[int, int]]:
    shapes = []
    for part in text.split(","):
        n, _, k = part.partition("x")
        if not (n.isdecimal() and k.isdecimal() and int(n) and int(k)):
            raise OmniError(f"--shapes {part}: expected NxK")
        shapes.append((int(n), int(k)))
    return shapes
