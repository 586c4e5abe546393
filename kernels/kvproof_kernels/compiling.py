"""How what is compiled by Numba is kept on disk: once for a version of the modules in a folder.

Numba looks at the file of a function to tell whether its compiled code is out of date, and not at the files of the
functions that it calls. So the folder of compiled code is named after the text of all modules there, wherever it lies.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba

config: Any = numba.config


def compiler(modules: Path, way_out: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function at its first call, with Numba's ``options``, and keeps the code.

    ``modules``: the folder of Python files that the compiled code is made from.

    Raises:
        ImportError: compilation is switched off; ``way_out`` says what to do.
    """
    if config.DISABLE_JIT:
        raise ImportError(f"NUMBA_DISABLE_JIT is set, and {way_out}")
    folder = _cache_folder(modules)

    def compiled(function: Callable[..., Any]) -> Any:
        before, config.CACHE_DIR = config.CACHE_DIR, folder  # read when the function is decorated
        try:
            return numba.njit(cache=bool(folder), **options)(function)
        finally:
            config.CACHE_DIR = before

    return compiled


def _cache_folder(modules: Path) -> str | None:
    """The first folder that can be written; None, to compile anew in each process, where there is none or no text."""
    text = b"".join(path.read_bytes() for path in sorted(modules.glob("*.py")))
    folders = (place / f"compiled-{hashlib.sha256(text).hexdigest()[:16]}" for place in _cache_places(modules))
    return next((str(folder) for folder in folders if _can_write(folder)), None) if text else None


def _cache_places(modules: Path) -> Iterator[Path]:
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR)
    yield modules / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "kvproof"


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
