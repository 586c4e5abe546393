"""The two matrix products of attention for one tile of tokens and one key head: q·k, and the weighted sum of v.

A loaded K or V row serves four query rows from registers: with a group of up to four query heads a decode step reads
each of them once, and beyond that the second time from the nearest cache.

    query, out     float32 [rows, dim], rows padded to a multiple of 4, dims with zeros to one of 16 (32 for out)
    scores         float32 [TILE, row_stride]: the tokens of the tile, by all rows of the work item
    keys, values   int64 [TILE]: where the K and V rows of the tile's tokens stand, without the head
"""

from __future__ import annotations

from typing import Any

from numba import types

from kvproof_kernels.cpu.arithmetic import multiply_add, sums_of_four, sums_of_quarters
from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.lanes import WIDTH, load, load_first, load_floats, load_spread, spread, store
from kvproof_kernels.cpu.memory import load_int64

FLOAT = types.float32


@inlined
def row_part(address: Any, stored: Any, left: Any) -> Any:
    """16 elements of a row of which ``left`` remain, 0 after its end; never a byte behind it."""
    if left >= WIDTH:
        return load(address, stored)
    return load_first(address, stored, left)


@inlined
def score_4_by_4(
    query: Any, query_bytes: Any, k0: Any, k1: Any, k2: Any, k3: Any, dim: Any, stored: Any, size: Any
) -> Any:
    """q·k of 4 query rows, ``query_bytes`` apart, with 4 tokens: lane 4·token + row."""
    zero = spread(FLOAT(0))
    a00 = a01 = a02 = a03 = zero
    a10 = a11 = a12 = a13 = zero
    a20 = a21 = a22 = a23 = zero
    a30 = a31 = a32 = a33 = zero
    for d in range(0, dim, WIDTH):
        q0 = load_floats(query + 4 * d)
        q1 = load_floats(query + query_bytes + 4 * d)
        q2 = load_floats(query + 2 * query_bytes + 4 * d)
        q3 = load_floats(query + 3 * query_bytes + 4 * d)
        k = row_part(k0 + size * d, stored, dim - d)
        a00 = multiply_add(q0, k, a00)
        a01 = multiply_add(q1, k, a01)
        a02 = multiply_add(q2, k, a02)
        a03 = multiply_add(q3, k, a03)
        k = row_part(k1 + size * d, stored, dim - d)
        a10 = multiply_add(q0, k, a10)
        a11 = multiply_add(q1, k, a11)
        a12 = multiply_add(q2, k, a12)
        a13 = multiply_add(q3, k, a13)
        k = row_part(k2 + size * d, stored, dim - d)
        a20 = multiply_add(q0, k, a20)
        a21 = multiply_add(q1, k, a21)
        a22 = multiply_add(q2, k, a22)
        a23 = multiply_add(q3, k, a23)
        k = row_part(k3 + size * d, stored, dim - d)
        a30 = multiply_add(q0, k, a30)
        a31 = multiply_add(q1, k, a31)
        a32 = multiply_add(q2, k, a32)
        a33 = multiply_add(q3, k, a33)
    return sums_of_quarters(
        sums_of_four(a00, a01, a02, a03),
        sums_of_four(a10, a11, a12, a13),
        sums_of_four(a20, a21, a22, a23),
        sums_of_four(a30, a31, a32, a33),
    )


@inlined
def weigh_4_by_32(
    weights: Any,
    stride: Any,
    num_tokens: Any,
    values: Any,
    offset: Any,
    left: Any,
    stored: Any,
    size: Any,
    out: Any,
    out_bytes: Any,
    decay: Any,
) -> None:
    """out ← decay·out + Σ weight·v for 4 rows and 32 of their dims, of which ``left`` exist, ``offset`` bytes into V.

    ``weights``: address of the 4 rows' weights of the first token, ``stride`` bytes before those of the next;
    ``decay``: address of the rows' 4 factors.
    """
    zero = spread(FLOAT(0))
    v0 = v1 = v2 = v3 = zero
    w0 = w1 = w2 = w3 = zero
    for t in range(num_tokens):
        row = load_int64(values + 8 * t) + offset
        v = row_part(row, stored, left)
        w = row_part(row + WIDTH * size, stored, left - WIDTH)
        p = load_spread(weights + t * stride)
        v0 = multiply_add(p, v, v0)
        w0 = multiply_add(p, w, w0)
        p = load_spread(weights + t * stride + 4)
        v1 = multiply_add(p, v, v1)
        w1 = multiply_add(p, w, w1)
        p = load_spread(weights + t * stride + 8)
        v2 = multiply_add(p, v, v2)
        w2 = multiply_add(p, w, w2)
        p = load_spread(weights + t * stride + 12)
        v3 = multiply_add(p, v, v3)
        w3 = multiply_add(p, w, w3)
    rescale_and_add(out, load_spread(decay), v0, w0)
    rescale_and_add(out + out_bytes, load_spread(decay + 4), v1, w1)
    rescale_and_add(out + 2 * out_bytes, load_spread(decay + 8), v2, w2)
    rescale_and_add(out + 3 * out_bytes, load_spread(decay + 12), v3, w3)


@inlined
def rescale_and_add(out: Any, factor: Any, v: Any, w: Any) -> None:
    store(out, multiply_add(load_floats(out), factor, v))
    store(out + 4 * WIDTH, multiply_add(load_floats(out + 4 * WIDTH), factor, w))
