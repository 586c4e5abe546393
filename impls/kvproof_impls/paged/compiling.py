"""How this allocator's hot path is compiled: by Numba, once for a version of these files, and kept on disk.

Numba looks at the file of a function to tell whether its compiled code is out of date, and not at the files of the
functions that it calls. So the folder of compiled code is named after the text of all modules here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

HERE = Path(__file__).parent


def _cache_folder() -> str:
    text = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    return str(HERE / "__pycache__" / f"compiled-{hashlib.sha256(text).hexdigest()[:16]}")


_CACHE_FOLDER = _cache_folder()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled at its first call. Where the folder can't be written Numba takes the user's cache.

    Inlined into its callers: handed from function to function, each array of the state would be counted in and out.
    """
    config: Any = numba.config
    before, config.CACHE_DIR = config.CACHE_DIR, _CACHE_FOLDER  # read when the function is decorated
    try:
        return numba.njit(cache=True, nogil=True, forceinline=True)(function)  # type: ignore[no-any-return]
    finally:
        config.CACHE_DIR = before


def _pointer(typing_context: Any, address: Any) -> Any:
    """A number as a pointer, for ``numba.carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


pointer: Any = intrinsic(_pointer)
