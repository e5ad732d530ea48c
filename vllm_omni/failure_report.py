"""The cause of a failed start, carried from an engine process to the command that started it.

vLLM logs the exception where it happens ("WorkerProc failed to start.", "EngineCore failed to start.") and
raises "Engine core initialization failed. See root cause above" in the process that the user started. The
first one logged is the cause.
"""

from __future__ import annotations

import logging
from pathlib import Path

_VLLM_LOGGER = "vllm"
_FAILED_START = "failed to start"


class FailureReport(logging.Handler):
    """Writes the exception of the first failed start as one line into a file; later ones are its
    consequences."""

    def __init__(self, file: Path) -> None:
        super().__init__(level=logging.ERROR)
        self.file = file

    def emit(self, record: logging.LogRecord) -> None:
        if not record.exc_info or record.exc_info[1] is None or _FAILED_START not in record.getMessage():
            return
        try:
            # "x": the process that comes first wins, without a lock between processes.
            with open(self.file, "x", encoding="utf-8") as file:
                file.write(one_line(record.exc_info[1]))
        except OSError:
            # The report is an addition to vLLM's log, which has the exception in any case.
            return


def report_failures(file: Path) -> None:
    """From now on, write the cause of a failed start of this process to ``file``."""
    logger = logging.getLogger(_VLLM_LOGGER)
    if not any(isinstance(handler, FailureReport) for handler in logger.handlers):
        logger.addHandler(FailureReport(file))


def one_line(error: BaseException) -> str:
    """An exception as one line: the first message of a validation error, else the message; the type where it
    is empty."""
    details = getattr(error, "errors", None)
    if callable(details):
        try:
            first = details()[0]
            text = str(first.get("ctx", {}).get("error") or first["msg"])
        except (IndexError, KeyError, TypeError, AttributeError):
            text = str(error)
    else:
        text = str(error)
    text = " ".join(text.split())
    return text or type(error).__name__
