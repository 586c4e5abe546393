"""The memory in which one thread works on one item: query rows, scores, maxima, sums and the output so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvproof_kernels.cpu.layout import TILE


class Scratch(NamedTuple):
    """Arrays of one thread; ``rows`` is padded to 16, dims to 32."""

    query: Any
    """float32 [rows, head_dim], padding 0."""
    out: Any
    """float32 [rows, value_dim]."""
    scores: Any
    """float32 [TILE, rows]."""
    state: Any
    """float32 [7, rows]: see the names below."""
    addresses: Any
    """int64 [2, TILE]: where K and V of the tile's tokens stand."""


MAXIMUM, SUM, DECAY, LOWEST, HIGHEST, POSITION, SLOPE = range(7)
"""Rows of ``state``; the positions are counted from the item's first token, which keeps them exact in float32."""


def padded(number: int, step: int) -> int:
    return -(-number // step) * step


def scratch_for(rows: int, head_dim: int, value_dim: int) -> Scratch:
    rows = padded(rows, 16)
    shapes = [(rows, padded(head_dim, 16)), (rows, padded(value_dim, 32)), (TILE, rows), (7, rows)]
    query, out, scores, state = (np.zeros(shape, np.float32) for shape in shapes)
    return Scratch(query, out, scores, state, np.zeros((2, TILE), np.int64))
