"""The memory in which one thread works on one item: query rows, scores, maxima, sums and the output so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvproof_kernels.cpu.layout import TILE


class Scratch(NamedTuple):
    """Arrays of one thread; ``rows`` is padded to 16, the dims of queries to 32 and those of ``out`` to 64."""

    query: Any
    """uint8 [rows, 4 · head_dim], padding 0: float32, or the half of it where queries are bfloat16."""
    out: Any
    """float32 [rows, value_dim]."""
    scores: Any
    """float32 [TILE, rows]."""
    state: Any
    """float32 [7, rows]: see the names below."""
    keys: Any
    """int64 [TILE · heads]: where the K rows of the tile's tokens stand, those of a token side by side."""
    values: Any
    """The same of V."""


MAXIMUM, SUM, DECAY, LOWEST, HIGHEST, POSITION, SLOPE = range(7)
"""Rows of ``state``; the positions are counted from the item's first token, which keeps them exact in float32."""


def padded(number: int, step: int) -> int:
    return -(-number // step) * step


def scratch_for(rows: int, num_heads: int, head_dim: int, value_dim: int) -> Scratch:
    rows = padded(rows, 16)
    query = np.zeros((rows, 4 * padded(head_dim, 32)), np.uint8)
    shapes = [(rows, padded(value_dim, 64)), (TILE, rows), (7, rows)]
    out, scores, state = (np.zeros(shape, np.float32) for shape in shapes)
    return Scratch(query, out, scores, state, *(np.zeros(TILE * num_heads, np.int64) for _ in range(2)))
