"""The temporary folder of a worker, which its judge holds for as long as it lives: who finds one that nobody holds
may remove it. A judge that is killed can't."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "kvproof-worker-"
SECONDS_TO_HOLD = 60
"""A folder that is younger may be about to be held."""


def make() -> tuple[Path, int]:
    """A new one, and the descriptor that holds it until it is closed, at the latest by the end of this process."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = _open(folder)
    with suppress(OSError):  # a file system without locks: it is then not removed by others either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, descriptor


def remove_left() -> None:
    """Those of this user that nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone, somebody else's, no folder, or held
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    descriptor = _open(folder)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > SECONDS_TO_HOLD:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
