"""How the CPU kernel is compiled: whole, and without Python's lock.

Numba's ``fastmath`` stays off: sums are put in order by hand, and NaN and infinity keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from kvproof_kernels.compiling import compiler

compiled = compiler(Path(__file__).parent, "the CPU kernel runs compiled only; unset it", nogil=True)


def inlined(function: Callable[..., Any]) -> Any:
    """A piece of a ``compiled`` function, put in the place of each of its calls."""
    return numba.njit(forceinline=True)(function)
