"""How this allocator's hot path is compiled.

Functions are inlined into their callers: handed from function to function, each array of the state would be counted in
and out. Nothing is divided by zero, and with Numba's ``error_model`` of NumPy nobody looks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numba import types
from numba.extending import intrinsic

from kvproof_kernels.compiling import compiler

compiled = compiler(
    Path(__file__).parent,
    "this allocator runs compiled only; unset it, or use paged-python, which is the same one in plain Python",
    forceinline=True,
    error_model="numpy",
)


def _pointer(typing_context: Any, address: Any) -> Any:
    """A number as a pointer, for ``numba.carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


pointer: Any = intrinsic(_pointer)
