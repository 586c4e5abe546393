"""The two matrix products of attention for one tile of tokens and one key head: q·k, and the weighted sum of v.

A loaded K or V row serves four query rows from registers: with a group of up to four query heads a decode step reads
each of them once, and beyond that the second time from the nearest cache. While one product is calculated the memory
that the next one reads is asked for, a bit at each step: many requests at once would be waited for, or be dropped.

    query          float32 or bfloat16 [rows, dim], rows padded to a multiple of 4, dims with zeros to one of 32
    out            float32 [rows, dim], dims padded to a multiple of 64
    scores         float32 [TILE, row_stride]: the tokens of the tile, by all rows of the work item
    keys, values   int64 [TILE, heads]: where the K and V rows of the tile's tokens stand
"""

from __future__ import annotations

from typing import Any

from numba import types

from kvproof_kernels.cpu.arithmetic import multiply_add, sums_of_four, sums_of_quarters
from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.elements import STEP, bytes_of, load_32, load_first_of_32, multiply_add_32
from kvproof_kernels.cpu.lanes import WIDTH, load_floats, load_spread, spread, store
from kvproof_kernels.cpu.memory import load_int64, prefetch_bytes

FLOAT = types.float32
OUT_STEP = 2 * STEP
"""Dims of V that are summed at a time."""


@inlined
def row_part(address: Any, stored: Any, left: Any) -> Any:
    """32 elements of a row of which ``left`` remain, 0 after its end; never a byte behind it."""
    if left >= STEP:
        return load_32(address, stored)
    return load_first_of_32(address, stored, left)


@inlined
def score_4_by_4(query: Any, query_bytes: Any, keys: Any, keys_bytes: Any, dim: Any, ahead: Any, formats: Any) -> Any:
    """q·k of 4 query rows, ``query_bytes`` apart, with 4 tokens: lane 4·token + row.

    ``keys``: address of the first token's in the table of K rows, ``keys_bytes`` before the next one's; ``ahead``: that
    of 4 rows that will be read later, or 0.
    """
    zero = spread(FLOAT(0))
    a00 = a01 = a02 = a03 = zero
    a10 = a11 = a12 = a13 = zero
    a20 = a21 = a22 = a23 = zero
    a30 = a31 = a32 = a33 = zero
    size, query_size = bytes_of(formats.key), bytes_of(formats.query)
    k0, k1 = load_int64(keys), load_int64(keys + keys_bytes)
    k2, k3 = load_int64(keys + 2 * keys_bytes), load_int64(keys + 3 * keys_bytes)
    for d in range(0, dim, STEP):
        if ahead:
            for row in range(4):
                prefetch_bytes(load_int64(ahead + 8 * row) + size * d, STEP * size)
        q0 = load_32(query + query_size * d, formats.query)
        q1 = load_32(query + query_bytes + query_size * d, formats.query)
        q2 = load_32(query + 2 * query_bytes + query_size * d, formats.query)
        q3 = load_32(query + 3 * query_bytes + query_size * d, formats.query)
        k = row_part(k0 + size * d, formats.key, dim - d)
        a00 = multiply_add_32(q0, k, a00)
        a01 = multiply_add_32(q1, k, a01)
        a02 = multiply_add_32(q2, k, a02)
        a03 = multiply_add_32(q3, k, a03)
        k = row_part(k1 + size * d, formats.key, dim - d)
        a10 = multiply_add_32(q0, k, a10)
        a11 = multiply_add_32(q1, k, a11)
        a12 = multiply_add_32(q2, k, a12)
        a13 = multiply_add_32(q3, k, a13)
        k = row_part(k2 + size * d, formats.key, dim - d)
        a20 = multiply_add_32(q0, k, a20)
        a21 = multiply_add_32(q1, k, a21)
        a22 = multiply_add_32(q2, k, a22)
        a23 = multiply_add_32(q3, k, a23)
        k = row_part(k3 + size * d, formats.key, dim - d)
        a30 = multiply_add_32(q0, k, a30)
        a31 = multiply_add_32(q1, k, a31)
        a32 = multiply_add_32(q2, k, a32)
        a33 = multiply_add_32(q3, k, a33)
    return sums_of_quarters(
        sums_of_four(a00, a01, a02, a03),
        sums_of_four(a10, a11, a12, a13),
        sums_of_four(a20, a21, a22, a23),
        sums_of_four(a30, a31, a32, a33),
    )


@inlined
def weigh_4_by_64(
    weights: Any,
    stride: Any,
    num_tokens: Any,
    values: Any,
    values_bytes: Any,
    first_dim: Any,
    dim: Any,
    out: Any,
    out_bytes: Any,
    decay: Any,
    ahead: Any,
    num_ahead: Any,
    stored: Any,
) -> None:
    """out ← decay·out + Σ weight·v for 4 rows and 64 of their ``dim`` dims, from ``first_dim`` on.

    ``weights``: address of the 4 rows' weights of the first token, ``stride`` bytes before those of the next;
    ``values`` and ``ahead`` as for ``score_4_by_4``, the latter of ``num_ahead`` rows; ``out``: of the first
    dim, rows ``out_bytes`` apart; ``decay``: address of the rows' 4 factors.
    """
    zero = spread(FLOAT(0))
    a0 = a1 = a2 = a3 = zero
    b0 = b1 = b2 = b3 = zero
    c0 = c1 = c2 = c3 = zero
    d0 = d1 = d2 = d3 = zero
    size = bytes_of(stored)
    offset, left = size * first_dim, dim - first_dim
    for t in range(num_tokens):
        if t < num_ahead:
            prefetch_bytes(load_int64(ahead + 8 * t) + offset, OUT_STEP * size)
        row = load_int64(values + t * values_bytes) + offset
        a, b = row_part(row, stored, left)
        c, d = row_part(row + STEP * size, stored, left - STEP)
        p = load_spread(weights + t * stride)
        a0 = multiply_add(p, a, a0)
        b0 = multiply_add(p, b, b0)
        c0 = multiply_add(p, c, c0)
        d0 = multiply_add(p, d, d0)
        p = load_spread(weights + t * stride + 4)
        a1 = multiply_add(p, a, a1)
        b1 = multiply_add(p, b, b1)
        c1 = multiply_add(p, c, c1)
        d1 = multiply_add(p, d, d1)
        p = load_spread(weights + t * stride + 8)
        a2 = multiply_add(p, a, a2)
        b2 = multiply_add(p, b, b2)
        c2 = multiply_add(p, c, c2)
        d2 = multiply_add(p, d, d2)
        p = load_spread(weights + t * stride + 12)
        a3 = multiply_add(p, a, a3)
        b3 = multiply_add(p, b, b3)
        c3 = multiply_add(p, c, c3)
        d3 = multiply_add(p, d, d3)
    rescale_and_add(out, load_spread(decay), a0, b0, c0, d0)
    rescale_and_add(out + out_bytes, load_spread(decay + 4), a1, b1, c1, d1)
    rescale_and_add(out + 2 * out_bytes, load_spread(decay + 8), a2, b2, c2, d2)
    rescale_and_add(out + 3 * out_bytes, load_spread(decay + 12), a3, b3, c3, d3)


@inlined
def rescale_and_add(out: Any, factor: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    store(out, multiply_add(load_floats(out), factor, a))
    store(out + 4 * WIDTH, multiply_add(load_floats(out + 4 * WIDTH), factor, b))
    store(out + 8 * WIDTH, multiply_add(load_floats(out + 8 * WIDTH), factor, c))
    store(out + 12 * WIDTH, multiply_add(load_floats(out + 12 * WIDTH), factor, d))
