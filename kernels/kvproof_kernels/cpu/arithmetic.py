"""Arithmetic on lanes, each operation as LLVM has it and none reordered; the exponential; and sums across lanes.

Shuffles stay inside quarters of four lanes as long as they can, which costs least on CPUs with such quarters.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from kvproof_kernels.cpu.lanes import FLOATS, INT32, INTS, LANES, WIDTH, constant, intrinsic, llvm_function, pointer

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.428606820309417e-06
SHIFTER = 12582912.0
"""1.5·2^23: added to x it leaves the nearest integer to x in the low bits of the sum."""


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(FLOATS, [FLOATS, FLOATS, FLOATS])
    return builder.call(llvm_function(builder, f"llvm.fma.v{WIDTH}f32", kind), [a, b, c])


@intrinsic
def multiply_add(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""
    return LANES(LANES, LANES, LANES), lambda context, builder, signature, given: fused(builder, *given)


@intrinsic
def multiply(typing_context: Any, a: Any, b: Any) -> Any:
    return LANES(LANES, LANES), lambda context, builder, signature, given: builder.fmul(*given)


@intrinsic
def add(typing_context: Any, a: Any, b: Any) -> Any:
    return LANES(LANES, LANES), lambda context, builder, signature, given: builder.fadd(*given)


@intrinsic
def subtract(typing_context: Any, a: Any, b: Any) -> Any:
    return LANES(LANES, LANES), lambda context, builder, signature, given: builder.fsub(*given)


@intrinsic
def where_less(typing_context: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """``then`` in the lanes where a < b; a NaN is less than nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, then, otherwise = arguments
        return builder.select(builder.fcmp_ordered("<", a, b), then, otherwise)

    return LANES(LANES, LANES, LANES, LANES), generate


@intrinsic
def exponential(typing_context: Any, x: Any) -> Any:
    """e^x for x <= 0, to about one unit in the last place; 0 below -87, where float32 has no normal number.

    x = n·ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts (Cody and Waite), e^r by its series up to r^7 / 7!, whose
    rest is below 2^-27, and 2^n by its exponent bits. A NaN stays one.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = arguments
        shifted = fused(builder, x, constant(FLOATS, LOG2_E), constant(FLOATS, SHIFTER))
        n = builder.fsub(shifted, constant(FLOATS, SHIFTER))
        r = fused(builder, n, constant(FLOATS, -LN2_HIGH), x)
        r = fused(builder, n, constant(FLOATS, -LN2_LOW), r)
        y = constant(FLOATS, 1 / 5040)
        for factorial in (720, 120, 24, 6, 2, 1, 1):
            y = fused(builder, y, r, constant(FLOATS, 1 / factorial))
        exponent = builder.shl(builder.bitcast(shifted, INTS), constant(INTS, 23))
        power = builder.bitcast(builder.add(exponent, constant(INTS, 127 << 23)), FLOATS)
        y = builder.fmul(y, power)
        return builder.select(builder.fcmp_ordered("<", x, constant(FLOATS, -87.0)), constant(FLOATS, 0.0), y)

    return LANES(LANES), generate


def _paired(builder: Any, a: Any, b: Any, low: list[int], high: list[int]) -> Any:
    first = builder.shuffle_vector(a, b, ir.Constant(INTS, low))
    return builder.fadd(first, builder.shuffle_vector(a, b, ir.Constant(INTS, high)))


def _by_quarters(low: list[int]) -> list[int]:
    """A shuffle inside each quarter of four lanes."""
    return [lane + 4 * quarter for quarter in range(4) for lane in low]


@intrinsic
def sums_of_four(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """In each quarter of four lanes: the sums of that quarter of a, of b, of c and of d."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high = _by_quarters([0, 16, 1, 17]), _by_quarters([2, 18, 3, 19])
        ab = _paired(builder, arguments[0], arguments[1], low, high)
        cd = _paired(builder, arguments[2], arguments[3], low, high)
        return _paired(builder, ab, cd, _by_quarters([0, 1, 16, 17]), _by_quarters([2, 3, 18, 19]))

    return LANES(LANES, LANES, LANES, LANES), generate


@intrinsic
def sums_of_quarters(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sum of the four quarters of a in the first quarter, of b in the second, of c and of d in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high = [*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]
        ab = _paired(builder, arguments[0], arguments[1], low, high)
        cd = _paired(builder, arguments[2], arguments[3], low, high)
        even = [lane + start for start in (0, 8, 16, 24) for lane in range(4)]
        return _paired(builder, ab, cd, even, [lane + 4 for lane in even])

    return LANES(LANES, LANES, LANES, LANES), generate


@intrinsic
def store_quarter(typing_context: Any, address: Any, value: Any, quarter: Any) -> Any:
    """Four lanes to ``address``; ``quarter`` is a constant of the program."""
    if not isinstance(quarter, types.IntegerLiteral):
        return None
    start = 4 * quarter.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = ir.Constant(ir.VectorType(INT32, 4), list(range(start, start + 4)))
        four = builder.shuffle_vector(arguments[1], ir.Constant(FLOATS, ir.Undefined), lanes)
        builder.store(four, pointer(builder, arguments[0], four.type), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, LANES, quarter), generate
