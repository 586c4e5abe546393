"""How this allocator's hot path is compiled: by Numba, once for a version of these files, and kept on disk.

Numba looks at the file of a function to tell whether its compiled code is out of date, and not at the files of the
functions that it calls. So the folder of compiled code is named after the text of all modules here, wherever it lies.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

HERE = Path(__file__).parent


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError(
        "NUMBA_DISABLE_JIT is set, and this allocator runs compiled only; unset it, or use paged-python, which is the "
        "same one in plain Python"
    )


def _cache_folder() -> str | None:
    """The first folder that can be written; None, to compile anew in each process, where there is none or no text."""
    text = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    folders = (place / f"compiled-{hashlib.sha256(text).hexdigest()[:16]}" for place in _cache_places())
    return next((str(folder) for folder in folders if _can_write(folder)), None) if text else None


def _cache_places() -> Iterator[Path]:
    if numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        yield Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
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


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled at its first call, and kept where there is a folder for it.

    Inlined into its callers: handed from function to function, each array of the state would be counted in and out.
    """
    config: Any = numba.config
    before, config.CACHE_DIR = config.CACHE_DIR, _CACHE_FOLDER  # read when the function is decorated
    try:
        return numba.njit(cache=bool(_CACHE_FOLDER), forceinline=True, error_model="numpy")(function)  # type: ignore[no-any-return]
    finally:
        config.CACHE_DIR = before


def _pointer(typing_context: Any, address: Any) -> Any:
    """A number as a pointer, for ``numba.carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


pointer: Any = intrinsic(_pointer)
