"""What compiled code needs of memory besides lanes: table entries, hints ahead, counters that threads share."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.lanes import intrinsic, llvm_function

CACHE_LINE = 64
"""Bytes, on the CPUs that this is meant for; elsewhere hints come twice or miss, and nothing else changes."""


@intrinsic
def load_int32(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.sext(builder.load(place, align=4), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def load_int64(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=8)

    return types.int64(types.int64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``, which is soon to be read; into the second level of the cache, which is
    filled past the few lines that the first one can wait for. Any address will do."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = llvm_function(builder, "llvm.prefetch.p0", kind)
        # read, keep in the second level of the cache, data
        hints = [ir.Constant(number, hint) for hint in (0, 2, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], byte), *hints])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@inlined
def prefetch_bytes(address: Any, num_bytes: Any) -> None:
    for line in range(0, num_bytes, CACHE_LINE):
        prefetch(address + line)


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """The two must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number, flag = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(1)
        kind = ir.FunctionType(ir.VoidType(), [byte, byte, number, flag])
        function = llvm_function(builder, "llvm.memcpy.p0.p0.i64", kind)
        target, source = (builder.inttoptr(address, byte) for address in arguments[:2])
        builder.call(function, [target, source, arguments[2], ir.Constant(flag, 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def count_up(typing_context: Any, address: Any) -> Any:
    """Add 1 to the int64 at ``address``, as one step for all threads; gives what it was. What a thread wrote before is
    seen by the threads that count after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        place = builder.inttoptr(arguments[0], number.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(number, 1), "acq_rel")

    return types.int64(types.int64), generate
