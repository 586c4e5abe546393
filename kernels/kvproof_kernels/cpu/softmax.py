"""One step of the online softmax, over the scores of a tile.

With m the highest score so far, l the sum of e^(s − m) and o that of e^(s − m)·v, a tile of new scores changes them to
    m' = max(m, s…),   l' = e^(m − m')·l + Σ e^(s − m'),   o' = e^(m − m')·o + Σ e^(s − m')·v
(Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, algorithm 3.) ``decay`` is e^(m − m').
Scores stand with the query rows side by side, so that a lane is a row and no maximum or sum crosses lanes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from kvproof_kernels.cpu.arithmetic import add, exponential, multiply, multiply_add, subtract, where_less
from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.lanes import WIDTH, load_floats, spread, store

FLOAT = types.float32
INFINITY = np.float32(np.inf)


@inlined
def scale_scores(scores: Any, stride: Any, num_tokens: Any, column: Any, scale: Any) -> None:
    factor = spread(scale)
    for t in range(num_tokens):
        place = scores + t * stride + 4 * column
        store(place, multiply(load_floats(place), factor))


@inlined
def cap_scores(scores: Any, num_tokens: Any, column: Any, cap: Any) -> None:
    """cap·tanh(s / cap). ``scores``: float32 [TILE, rows]."""
    for t in range(num_tokens):
        for row in range(column, column + WIDTH):
            scores[t, row] = cap * math.tanh(scores[t, row] / cap)


@inlined
def add_bias(scores: Any, stride: Any, num_tokens: Any, column: Any, first: Any, slopes: Any, positions: Any) -> None:
    """ALiBi: slope·(key position − query position). ``first``: position of the tile's first token."""
    slope, position = load_floats(slopes + 4 * column), load_floats(positions + 4 * column)
    for t in range(num_tokens):
        place = scores + t * stride + 4 * column
        distance = subtract(spread(FLOAT(first + t)), position)
        store(place, multiply_add(slope, distance, load_floats(place)))


@inlined
def hide(scores: Any, stride: Any, num_tokens: Any, column: Any, first: Any, lowest: Any, highest: Any) -> None:
    """−inf where the key lies before the lowest position that a row sees, or behind its highest."""
    low, high, hidden = load_floats(lowest + 4 * column), load_floats(highest + 4 * column), spread(-INFINITY)
    for t in range(num_tokens):
        place, position = scores + t * stride + 4 * column, spread(FLOAT(first + t))
        seen = where_less(position, low, hidden, load_floats(place))
        store(place, where_less(high, position, hidden, seen))


@inlined
def online_softmax(scores: Any, stride: Any, num_tokens: Any, column: Any, maxima: Any, sums: Any, decays: Any) -> None:
    """Scores become weights; m, l and the decay of 16 rows are brought up to date. All are addresses."""
    place = scores + 4 * column
    before = load_floats(maxima + 4 * column)
    highest = before
    for t in range(num_tokens):
        score = load_floats(place + t * stride)
        highest = where_less(highest, score, score, highest)
    # A row that has seen no key yet: −inf − (−inf) would be NaN.
    base = where_less(spread(-INFINITY), highest, highest, spread(FLOAT(0)))
    decay = exponential(subtract(before, base))
    total = spread(FLOAT(0))
    for t in range(num_tokens):
        weight = exponential(subtract(load_floats(place + t * stride), base))
        store(place + t * stride, weight)
        total = add(total, weight)
    store(maxima + 4 * column, highest)
    store(decays + 4 * column, decay)
    store(sums + 4 * column, multiply_add(load_floats(sums + 4 * column), decay, total))
