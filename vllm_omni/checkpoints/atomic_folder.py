"""A folder that appears under its name complete, or not at all."""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_omni.errors import OmniError

_log = logging.getLogger(__name__)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target``; on a normal exit flush it to the disk and give it that name.

    Any exception, ``KeyboardInterrupt`` included, removes it. Raises ``OmniError`` when ``target`` exists,
    before or after the work, or when its parent is not a folder.
    """
    refuse_existing(target)
    parent = target.parent
    if not parent.is_dir():
        raise OmniError(f"{target}: no folder {parent}")
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=parent))
    except OSError as error:
        raise OmniError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        with _open_folder(temporary) as descriptor:
            # Held while this process lives. A file system without locks gives none, and later no warning.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield temporary
            _flush(temporary)
            # mkdtemp makes the folder private; the finished one follows the umask like any other.
            temporary.chmod(0o777 & ~_umask())
            refuse_existing(target)
            os.rename(temporary, target)
    except BaseException:
        _remove(temporary)
        raise
    _flush_folder(parent)


def refuse_existing(target: Path) -> None:
    """``OmniError`` when anything, a dangling link included, has this name."""
    if os.path.lexists(target):
        raise OmniError(f"{target}: exists already: expected a new folder")


def warn_of_abandoned(target: Path) -> None:
    """Name each folder that a killed process left while making ``target``: those of live ones are locked."""
    for folder in sorted(target.parent.glob(f".{glob.escape(target.name)}.partial-*")):
        with suppress(OSError), _open_folder(folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _log.warning("%s: left by a process that was killed: it can be removed", folder)


def _flush(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), "rb") as file:
                os.fsync(file.fileno())
        _flush_folder(Path(root))


def _flush_folder(folder: Path) -> None:
    with _open_folder(folder) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _remove(folder: Path) -> None:
    """Remove the folder; a second Ctrl-C or SIGTERM does not stop halfway."""
    previous = {}
    # Only the main thread may set handlers, and it alone runs them.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # None: a handler that is not Python's, which could not be put back.
            if signal.getsignal(number) is not None:
                previous[number] = signal.signal(number, signal.SIG_IGN)
    try:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
