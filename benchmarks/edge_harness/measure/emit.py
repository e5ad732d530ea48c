"""One JSON line on the true standard output, whatever else the engine prints."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


class Output:
    """From its construction on, everything that this process and its children print goes to standard error;
    :meth:`emit` alone reaches the standard output.

    Descriptors are exchanged, not ``sys.stdout``: native code and child processes print too.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def emit(self, record: dict[str, Any]) -> None:
        """Write ``record`` as one line. Values that are not finite numbers are an error, not ``NaN``."""
        emit(record, self._descriptor)


def emit(record: dict[str, Any], descriptor: int = 1) -> None:
    """Write ``record`` as one JSON line to ``descriptor``."""
    sys.stdout.flush()
    data = (json.dumps(record, allow_nan=False) + "\n").encode()
    while data:
        data = data[os.write(descriptor, data) :]
