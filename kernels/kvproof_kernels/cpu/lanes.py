"""Sixteen float32 numbers as one value that compiled code calculates with, whatever vectors the machine has.

Sixteen fill one AVX-512 register; LLVM takes two or four of narrower ones. Addresses are in bytes, so that pools of any
strides are read in place. ``load`` widens what it reads by the type of its ``stored`` argument: float32 is float32,
int16 stands for the bits of a float16 and uint16 for those of a bfloat16, whose exact widening is a shift.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import models, register_model

WIDTH = 16
FLOAT, INT32 = ir.FloatType(), ir.IntType(32)
FLOATS, INTS = ir.VectorType(FLOAT, WIDTH), ir.VectorType(INT32, WIDTH)
STORED = {types.float32: FLOAT, types.int16: ir.IntType(16), types.uint16: ir.IntType(16)}
intrinsic: Any = extending.intrinsic


class Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x16")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, FLOATS)


LANES = Lanes()


def pointer(builder: Any, address: Any, element: Any) -> Any:
    return builder.inttoptr(address, element.as_pointer())


def _widened(builder: Any, bits: Any, stored: Any) -> Any:
    if stored == types.float32:
        return bits
    if stored == types.int16:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), WIDTH)), FLOATS)
    return builder.bitcast(builder.shl(builder.zext(bits, INTS), constant(INTS, 16)), FLOATS)


def constant(vector: Any, number: float) -> Any:
    return ir.Constant(vector, [number] * WIDTH)


def llvm_function(builder: Any, name: str, kind: Any) -> Any:
    """One of LLVM's own functions."""
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


def spread_number(builder: Any, number: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, [0] * WIDTH))


@intrinsic
def load(typing_context: Any, address: Any, stored: Any) -> Any:
    """The 16 numbers at ``address``, widened."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = STORED[stored]
        bits = builder.load(pointer(builder, arguments[0], ir.VectorType(element, WIDTH)), align=element_bytes(stored))
        return _widened(builder, bits, stored)

    return LANES(types.int64, stored), generate


@intrinsic
def load_first(typing_context: Any, address: Any, stored: Any, count: Any) -> Any:
    """The first ``count`` of them, and 0 after; what lies behind them is not read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(STORED[stored], WIDTH)
        count32 = builder.trunc(arguments[2], INT32)
        lane = ir.Constant(INTS, list(range(WIDTH)))
        mask = builder.icmp_signed("<", lane, spread_number(builder, count32, INTS))
        name = f"llvm.masked.load.v{WIDTH}{'f32' if stored == types.float32 else 'i16'}.p0"
        kind = ir.FunctionType(vector, [vector.as_pointer(), INT32, mask.type, vector])
        function = llvm_function(builder, name, kind)
        align = ir.Constant(INT32, element_bytes(stored))
        bits = builder.call(
            function, [pointer(builder, arguments[0], vector), align, mask, ir.Constant(vector, [0] * WIDTH)]
        )
        return _widened(builder, bits, stored)

    return LANES(types.int64, stored, types.int64), generate


def element_bytes(stored: Any) -> int:
    return 4 if stored == types.float32 else 2


@intrinsic
def load_floats(typing_context: Any, address: Any) -> Any:
    """16 float32 numbers of our own."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(pointer(builder, arguments[0], FLOATS), align=4)

    return LANES(types.int64), generate


@intrinsic
def load_spread(typing_context: Any, address: Any) -> Any:
    """The float32 at ``address`` in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return spread_number(builder, builder.load(pointer(builder, arguments[0], FLOAT), align=4), FLOATS)

    return LANES(types.int64), generate


@intrinsic
def store(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], pointer(builder, arguments[0], FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, LANES), generate


@intrinsic
def spread(typing_context: Any, number: Any) -> Any:
    """One number in all lanes."""
    return LANES(types.float32), lambda context, builder, signature, given: spread_number(builder, given[0], FLOATS)
