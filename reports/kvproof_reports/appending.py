"""Lines appended to a file: each by one call, and none is lost while the disk is full."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

TORN = b" <torn>\n"
"""Ends a line whose writer died in the middle of it. A whole record ends with a brace, so the two can't be confused."""


class Busy(OSError):
    """Another process writes this file."""


class Appender:
    """Appends lines to ``path``. What can't be written waits, and goes before the next line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: list[bytes] = []
        """Lines that are not in the file, in order."""

    def append(self, line: bytes) -> None:
        """
        Raises:
            OSError: the file doesn't take it, or nothing yet of what waits; it waits as well.
        """
        self.waiting.append(line)
        self.flush()

    def flush(self) -> None:
        while self.waiting:
            close_torn_line(self.path)  # of a process that was killed, or of this one when the disk was full
            _append(self.path, self.waiting[0])
            del self.waiting[0]

    def save_elsewhere(self) -> Path:
        """Write what still waits to a file in the temporary folder; put behind this one, it makes it whole.

        Raises:
            OSError: nor there.
        """
        descriptor, name = tempfile.mkstemp(prefix="kvproof-", suffix=f"-{self.path.name}")
        os.close(descriptor)
        elsewhere = Appender(Path(name))
        elsewhere.waiting = [TORN, *self.waiting] if is_torn(self.path) else list(self.waiting)
        elsewhere.flush()
        return elsewhere.path


def hold(path: Path) -> int:
    """Keep ``path`` to this process until the descriptor that is returned is closed, at the latest by its end.

    Raises:
        Busy: another process holds it.
        OSError: it can't be written.
    """
    import fcntl

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Busy(errno.EBUSY, "another run is writing there", str(path)) from None
    except OSError:  # a file system without locks
        pass
    return descriptor


def close_torn_line(path: Path) -> None:
    if is_torn(path):
        _append(path, TORN)


def is_torn(path: Path) -> bool:
    """Whether the file's last line has no end."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, "only a part of a record could be written; is the disk full?", str(path))
    finally:
        os.close(descriptor)
