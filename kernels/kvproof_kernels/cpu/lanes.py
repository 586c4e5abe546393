"""Sixteen float32 numbers as one value that compiled code calculates with, whatever vectors the machine has.

Sixteen fill one AVX-512 register; LLVM takes two or four of narrower ones. Addresses are in bytes, so that memory of
any strides is read in place.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import models, register_model

WIDTH = 16
FLOAT, INT32 = ir.FloatType(), ir.IntType(32)
FLOATS, INTS = ir.VectorType(FLOAT, WIDTH), ir.VectorType(INT32, WIDTH)
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


def constant(vector: Any, number: float) -> Any:
    return ir.Constant(vector, [number] * WIDTH)


def llvm_function(builder: Any, name: str, kind: Any) -> Any:
    """One of LLVM's own functions."""
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


def spread_number(builder: Any, number: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, [0] * WIDTH))


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
