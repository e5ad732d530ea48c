"""Errors that a command reports as one line."""

from __future__ import annotations


class OmniError(Exception):
    """Something the user can put right. The message is one line: what was found, and what was expected."""


class FormatError(ValueError, OmniError):
    """A file or tensor is not what it should be: the message names it, what was expected and what came."""
