"""What a work item begins with: its query rows, and what each of them sees."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.elements import bytes_of, is_split, place_of, store_float
from kvproof_kernels.cpu.memory import copy_bytes, prefetch_bytes
from kvproof_kernels.cpu.scratch import HIGHEST, LOWEST, MAXIMUM, POSITION, SLOPE, SUM

FLOAT = types.float32
INFINITY = np.float32(np.inf)


@inlined
def set_up(
    problem: Any,
    item: Any,
    position: Any,
    queries: Any,
    slopes: Any,
    scratch: Any,
    head_rows: Any,
    num_ahead: Any,
    formats: Any,
) -> None:
    """Query rows next to each other, those of one key head together; what each of them sees; nothing seen yet. Asks
    for the first ``num_ahead`` rows of K in the meantime."""
    first_row, first_head, first, end = item[1], item[3], item[5], item[6]
    heads, state = item[4] - first_head, scratch.state
    state[MAXIMUM, :], state[SUM, :] = -INFINITY, 0
    state[LOWEST, :], state[HIGHEST, :] = 0, FLOAT(end - first)
    for row in range(heads * head_rows):
        for ahead in range(row * num_ahead // (heads * head_rows), (row + 1) * num_ahead // (heads * head_rows)):
            prefetch_bytes(scratch.keys[ahead], problem.head_dim * bytes_of(formats.key))
        scratch.out[row, :] = 0
        scratch.query[row, :] = 0
        head, member = row // head_rows, row % head_rows
        if member >= item[2] * problem.group_size:
            continue
        query_row = first_row + member // problem.group_size
        query_head = (first_head + head) * problem.group_size + member % problem.group_size
        copy_query(queries, query_row, query_head, scratch.query, row, formats)
        place = position + query_row - first_row - first
        state[POSITION, row] = FLOAT(place)
        if problem.causal:
            state[HIGHEST, row] = FLOAT(place)
        if problem.window:
            state[LOWEST, row] = FLOAT(place - problem.window + 1)
        if problem.has_slopes:
            state[SLOPE, row] = slopes[query_head]


@inlined
def copy_query(queries: Any, query_row: Any, query_head: Any, ours: Any, row: Any, formats: Any) -> None:
    """In the order in which K rows are read."""
    dim, size = queries.shape[2], bytes_of(formats.query)
    address = ours.ctypes.data + row * ours.shape[1]
    if is_split(formats.key):
        for d in range(dim):
            store_float(address + size * place_of(d, formats.key), FLOAT(queries[query_row, query_head, d]))
    else:
        source = queries.ctypes.data + (query_row * queries.shape[1] + query_head) * dim * size
        copy_bytes(address, source, dim * size)
