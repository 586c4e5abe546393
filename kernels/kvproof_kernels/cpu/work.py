"""One work item: some query rows, some key heads, some tokens, by the online softmax, a tile of tokens at a time.

Of each token K and V of all heads of the item are read one after the other, as they lie in an NHD pool. Only slots of
the item's tokens are touched: what lies past a context, or in a block of nobody, can't reach the result.
"""

from __future__ import annotations

from typing import Any

from kvproof_kernels.cpu.arithmetic import store_quarter
from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.lanes import WIDTH
from kvproof_kernels.cpu.layout import TILE
from kvproof_kernels.cpu.places import locate
from kvproof_kernels.cpu.products import OUT_STEP, score_4_by_4, weigh_4_by_64
from kvproof_kernels.cpu.scratch import DECAY, HIGHEST, LOWEST, MAXIMUM, POSITION, SLOPE, SUM
from kvproof_kernels.cpu.set_up import set_up
from kvproof_kernels.cpu.softmax import add_bias, cap_scores, hide, online_softmax, scale_scores


@inlined
def attend_item(problem: Any, item: Any, position: Any, queries: Any, slopes: Any, scratch: Any, formats: Any) -> Any:
    """Leaves maxima, sums and unnormalised output in ``scratch``; False if a table entry is outside the pool.

    ``position``: of the item's first query row; ``queries``: float32, or the bits of bfloat16 as ``formats`` says,
    [num_tokens, num_q_heads, head_dim], from the sequence's first row on.
    """
    seq, num_rows, first_head, first, end = item[0], item[2], item[3], item[5], item[6]
    heads, head_rows = item[4] - first_head, -(-num_rows * problem.group_size // 4) * 4
    num_columns = -(-heads * head_rows // WIDTH) * WIDTH
    num_tokens = min(TILE, end - first)
    if not locate(problem, problem.key, seq, first, num_tokens, first_head, heads, scratch.keys):
        return False
    set_up(problem, item, position, queries, slopes, scratch, head_rows, heads * num_tokens, formats)
    for start in range(first, end, TILE):
        locate(problem, problem.value, seq, start, num_tokens, first_head, heads, scratch.values)
        score(problem, heads, head_rows, num_tokens, scratch, formats)
        unseen = problem.causal and start + num_tokens - 1 > position
        if problem.window:
            unseen = unseen or start <= position + num_rows - 1 - problem.window
        to_weights(problem, start - first, num_tokens, num_columns, unseen, scratch)
        num_next = min(TILE, end - start - num_tokens)
        if not locate(problem, problem.key, seq, start + num_tokens, num_next, first_head, heads, scratch.keys):
            return False
        weigh(problem, heads, head_rows, num_tokens, num_next, scratch, formats)
        num_tokens = num_next
    return True


@inlined
def score(problem: Any, heads: Any, head_rows: Any, num_tokens: Any, scratch: Any, formats: Any) -> None:
    """q·k of all rows with all tokens of the tile; asks for the tile's V in the meantime, in the order of memory."""
    query_bytes, stride = scratch.query.shape[1], 4 * scratch.scores.shape[1]
    for t in range(0, num_tokens, 4):
        for head in range(heads):
            ahead = scratch.values.ctypes.data + 8 * (t * heads + 4 * head)
            for row in range(head * head_rows, (head + 1) * head_rows, 4):
                products = score_4_by_4(
                    scratch.query.ctypes.data + row * query_bytes,
                    query_bytes,
                    scratch.keys.ctypes.data + 8 * (t * heads + head),
                    8 * heads,
                    problem.head_dim,
                    ahead,
                    formats,
                )
                ahead = 0
                place = scratch.scores.ctypes.data + t * stride + 4 * row
                store_quarter(place, products, 0)
                store_quarter(place + stride, products, 1)
                store_quarter(place + 2 * stride, products, 2)
                store_quarter(place + 3 * stride, products, 3)


@inlined
def to_weights(problem: Any, first: Any, num_tokens: Any, num_columns: Any, unseen: Any, scratch: Any) -> None:
    """Scores to softmax weights, 16 rows at a time. ``first``: the tile's first token, counted from the item's."""
    scores, state = scratch.scores.ctypes.data, scratch.state.ctypes.data
    stride = 4 * scratch.scores.shape[1]
    for column in range(0, num_columns, WIDTH):
        scale_scores(scores, stride, num_tokens, column, problem.scale)
        if problem.softcap != 0:
            cap_scores(scratch.scores, num_tokens, column, problem.softcap)
        if problem.has_slopes:
            add_bias(scores, stride, num_tokens, column, first, state + SLOPE * stride, state + POSITION * stride)
        if unseen:
            hide(scores, stride, num_tokens, column, first, state + LOWEST * stride, state + HIGHEST * stride)
        online_softmax(
            scores, stride, num_tokens, column, state + MAXIMUM * stride, state + SUM * stride, state + DECAY * stride
        )


@inlined
def weigh(problem: Any, heads: Any, head_rows: Any, num_tokens: Any, num_next: Any, scratch: Any, formats: Any) -> None:
    """Add the tile's weighted V rows to the output; asks for K of the next tile, ``num_next`` tokens, meanwhile."""
    stride, out_bytes = 4 * scratch.scores.shape[1], 4 * scratch.out.shape[1]
    for head in range(heads):
        num_ahead = heads * num_next - head * num_tokens
        for row in range(head * head_rows, (head + 1) * head_rows, 4):
            for d in range(0, problem.value_dim, OUT_STEP):
                weigh_4_by_64(
                    scratch.scores.ctypes.data + 4 * row,
                    stride,
                    num_tokens,
                    scratch.values.ctypes.data + 8 * head,
                    8 * heads,
                    d,
                    problem.value_dim,
                    scratch.out.ctypes.data + row * out_bytes + 4 * d,
                    out_bytes,
                    scratch.state.ctypes.data + DECAY * stride + 4 * row,
                    scratch.keys.ctypes.data + 8 * head * num_tokens,
                    num_ahead,
                    formats.value,
                )
            num_ahead = 0
