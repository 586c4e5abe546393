"""How the CPU kernel is compiled: by Numba, once for a version of these files, and kept on disk.

Numba tells by the file of a function whether its compiled code is out of date, and doesn't look at the files of the
functions that it calls. So the folder of compiled code is named after the text of all modules here.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba

HERE = Path(__file__).parent

config: Any = numba.config

if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, and the CPU kernel runs compiled only; unset it")


def _cache_folder() -> str | None:
    """The first folder that can be written; None, to compile anew in each process, where there is none or no text."""
    text = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    folders = (place / f"compiled-{hashlib.sha256(text).hexdigest()[:16]}" for place in _cache_places())
    return next((str(folder) for folder in folders if _can_write(folder)), None) if text else None


def _cache_places() -> Iterator[Path]:
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR)
    yield HERE / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "kvproof"


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


_CACHE_FOLDER = _cache_folder()


def compiled(function: Callable[..., Any]) -> Any:
    """``function`` compiled at its first call, to run without Python's lock, and kept on disk.

    Numba's ``fastmath`` stays off: sums are put in order by hand, and NaN and infinity keep their meaning.
    """
    before, config.CACHE_DIR = config.CACHE_DIR, _CACHE_FOLDER  # read when the function is decorated
    try:
        return numba.njit(cache=bool(_CACHE_FOLDER), nogil=True)(function)
    finally:
        config.CACHE_DIR = before


def inlined(function: Callable[..., Any]) -> Any:
    """A piece of a ``compiled`` function, put in the place of each of its calls."""
    return numba.njit(forceinline=True)(function)
