"""Run a Triton kernel on CPU tensors in Triton's interpreter, without a switch for the whole process.

Triton's own switch, ``TRITON_INTERPRET=1``, is read when a kernel is decorated and holds for the process, which then
can neither compile ahead of time nor use ``torch.compile``. Here the compiled form stays what it is, and a second form
is made beside it when a CPU tensor comes along: the kernel's function, copied so that the ``@triton.jit`` pieces that
it calls are plain functions. Where the user did set the switch, the same code works on the functions inside the
interpreted forms.

Compiled and interpreted runs differ in two ways that ``kvproof_kernels.launch`` takes care of: bfloat16 arithmetic is
not understood by the interpreter (kernels widen to float32 under ``UPCAST``), and its stores to bfloat16 truncate.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import standard
from triton.runtime.interpreter import FunctionRewriter, InterpretedFunction
from triton.runtime.jit import JITFunction


def is_kernel(candidate: Any) -> bool:
    """Whether ``candidate`` came out of ``@triton.jit``, in either of its forms."""
    return isinstance(candidate, JITFunction | InterpretedFunction)


def run_interpreted(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run ``kernel`` once for each program of ``grid``, one after the other, in this process."""
    # Nor does one complain of an infinity or a NaN that arithmetic makes, which NumPy warns of.
    with _reductions(), warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
        # A sequence full of NaN is no reason to complain: no GPU does, and the callers of a kernel may test for it.
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        _interpreted(kernel)[grid](*args, **constants)


@functools.cache
def _interpreted(kernel: Any) -> InterpretedFunction:
    return InterpretedFunction(_copy(kernel.fn))


@functools.cache
def _plain(piece: Any) -> Callable[..., Any]:
    """``piece`` as a function that a kernel in the interpreter calls like any other.

    An ``InterpretedFunction`` would patch ``triton.language`` anew at every call, which costs more than a small piece.
    """
    return FunctionRewriter(_copy(piece.fn)).rewrite_ast()


def _copy(function: FunctionType) -> FunctionType:
    """``function`` with globals of its own, in which the pieces are plain; the rewriter adds names to them too."""
    called = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    pieces = {name: _plain(value) for name, value in called.items() if is_kernel(value)}
    scope = {**function.__globals__, **pieces}
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__annotations__ = function.__annotations__
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    return copy


@contextmanager
def _reductions() -> Iterator[None]:
    """``tl.max`` and ``tl.sum`` are ``@triton.jit`` functions as well: make them callable for a while."""
    compiled = tl.max, tl.sum
    # The interpreter knows these two combine functions by identity and hands them to NumPy.
    tl.max = lambda tile, axis: tl.reduce(tile, axis, standard._elementwise_max)
    tl.sum = lambda tile, axis: tl.reduce(tile, axis, standard._sum_combine)
    try:
        yield
    finally:
        tl.max, tl.sum = compiled
