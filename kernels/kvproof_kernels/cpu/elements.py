"""Thirty-two elements of a stored row: how they are read, and multiplied.

Float32 and float16 are widened to two registers, in order. A bfloat16 is the upper half of a float32, so that of each
32 bits the lower element is widened by a shift and the upper one by a mask: the first register holds the elements of
even number, the second those of odd number. Query rows and outputs that meet such rows stand in the same order,
``place_of``. Pairs of bfloat16 (``formats``) stay as they are stored, in one register, so do queries that meet them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from kvproof_kernels.cpu.arithmetic import fused
from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.formats import BYTES
from kvproof_kernels.cpu.lanes import (
    FLOAT,
    FLOATS,
    INT32,
    INTS,
    LANES,
    WIDTH,
    constant,
    intrinsic,
    llvm_function,
    pointer,
)

STEP = 2 * WIDTH
MANY_INTS = ir.VectorType(INT32, STEP)


class BFloat16(ir.Type):
    """LLVM's bfloat, for which llvmlite has no name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat16)

    def __hash__(self) -> int:
        return hash(BFloat16)


def _vector(stored: Any) -> Any:
    return ir.VectorType(FLOAT if stored == types.float32 else ir.IntType(16), STEP)


def _type(stored: Any) -> Any:
    return LANES if stored == types.uint32 else types.UniTuple(LANES, 2)


@intrinsic
def bytes_of(typing_context: Any, stored: Any) -> Any:
    """Of one element; a constant of the program."""
    size = ir.Constant(ir.IntType(64), BYTES[stored])
    return types.int64(stored), lambda context, builder, signature, given: size


@intrinsic
def load_32(typing_context: Any, address: Any, stored: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = pointer(builder, arguments[0], _vector(stored))
        return _widened(context, builder, builder.load(place, align=BYTES[stored]), stored)

    return _type(stored)(types.int64, stored), generate


@intrinsic
def load_first_of_32(typing_context: Any, address: Any, stored: Any, count: Any) -> Any:
    """The first ``count`` of them, and 0 after; what lies behind them is not read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, undefined = _vector(stored), ir.Constant(MANY_INTS, ir.Undefined)
        one = builder.insert_element(undefined, builder.trunc(arguments[2], INT32), ir.Constant(INT32, 0))
        counts = builder.shuffle_vector(one, undefined, ir.Constant(MANY_INTS, [0] * STEP))
        mask = builder.icmp_signed("<", ir.Constant(MANY_INTS, list(range(STEP))), counts)
        name = f"llvm.masked.load.v{STEP}{'f32' if stored == types.float32 else 'i16'}.p0"
        kind = ir.FunctionType(vector, [vector.as_pointer(), INT32, mask.type, vector])
        place, align = pointer(builder, arguments[0], vector), ir.Constant(INT32, BYTES[stored])
        nothing = ir.Constant(vector, [0] * STEP)
        bits = builder.call(llvm_function(builder, name, kind), [place, align, mask, nothing])
        return _widened(context, builder, bits, stored)

    return _type(stored)(types.int64, stored, types.int64), generate


def _widened(context: Any, builder: Any, bits: Any, stored: Any) -> Any:
    if stored == types.uint32:
        return builder.bitcast(bits, FLOATS)
    if stored == types.uint16:
        pairs = builder.bitcast(bits, INTS)
        halves = [builder.shl(pairs, constant(INTS, 16)), builder.and_(pairs, constant(INTS, 0xFFFF0000))]
        return context.make_tuple(builder, _type(stored), [builder.bitcast(half, FLOATS) for half in halves])
    undefined = ir.Constant(bits.type, ir.Undefined)
    orders = [ir.Constant(INTS, list(range(start, start + WIDTH))) for start in (0, WIDTH)]
    halves = [builder.shuffle_vector(bits, undefined, order) for order in orders]
    if stored == types.int16:
        half_floats = ir.VectorType(ir.HalfType(), WIDTH)
        halves = [builder.fpext(builder.bitcast(half, half_floats), FLOATS) for half in halves]
    return context.make_tuple(builder, _type(stored), halves)


@intrinsic
def multiply_add_32(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Two products of elements onto each lane of c, both of ``load_32``'s of one order."""

    def pairs(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = ir.VectorType(BFloat16(), STEP)
        kind = ir.FunctionType(FLOATS, [FLOATS, bits, bits])
        function = llvm_function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", kind)
        return builder.call(function, [arguments[2], *(builder.bitcast(given, bits) for given in arguments[:2])])

    def halves(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, c = arguments
        for half in range(2):
            c = fused(builder, builder.extract_value(a, half), builder.extract_value(b, half), c)
        return c

    return LANES(a, b, LANES), pairs if a == LANES else halves


@intrinsic
def is_split(typing_context: Any, stored: Any) -> Any:
    split = ir.Constant(ir.IntType(1), int(stored == types.uint16))
    return types.boolean(stored), lambda context, builder, signature, given: split


@inlined
def place_of(d: Any, stored: Any) -> Any:
    """Where element d of a row stands."""
    if is_split(stored):
        return d // STEP * STEP + d % 2 * WIDTH + d % STEP // 2
    return d


@intrinsic
def store_float(typing_context: Any, address: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], pointer(builder, arguments[0], FLOAT), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate
