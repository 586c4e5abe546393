"""How the work of a batch is laid out: items that threads take one after the other, in groups of the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof_kernels.cpu.compiling import compiled, inlined

TILE = 32
"""Tokens of one step of the online softmax. With 8 heads of 128 dims K and V of a tile fill half of a 512 KiB cache."""
SPLIT = 512
"""Tokens of one part of a context that is cut for decode (flash-decoding). It depends on nothing else: neither the
neighbours in a batch nor the number of threads change a bit of the result."""
MAX_SPLIT_QUERY = 16
"""Query rows up to which a context is cut. A longer one has work enough, and its partial results would fill memory."""
ROWS = 32
"""Query rows times group size that a K row is read for, at least; a group of more takes more."""
MOST_ROWS = 128
"""The same over all key heads of a work item: K and V of all heads of a token lie side by side, and are read so."""
TASK = 9
"""Columns of a work item: sequence, first query row, rows, first head, end of heads, first token, end of tokens, its
group (the items that share output rows), its place in the group."""


def lay_out(
    context_lens: Any, query_starts: Any, group_size: int, num_kv_heads: int, causal: bool, window: int, threads: int
) -> tuple[Any, Any]:
    """Work items [num_items, TASK] and the number of items of each group [num_groups], both int64.

    Args:
        context_lens, query_starts: int64 [num_seqs] and [num_seqs + 1]. window: visible keys, 0 for all.
    """
    batch = (context_lens, query_starts, group_size, num_kv_heads, causal, window, threads)
    num_items, num_groups = place(*batch, np.empty((0, TASK), np.int64), np.empty(0, np.int64))
    items, groups = np.empty((num_items, TASK), np.int64), np.empty(num_groups, np.int64)
    place(*batch, items, groups)
    return items, groups


@compiled
def place(
    context_lens: Any,
    query_starts: Any,
    group_size: Any,
    num_kv_heads: Any,
    causal: Any,
    window: Any,
    threads: Any,
    items: Any,
    groups: Any,
) -> Any:
    """Counts items and groups, and writes them where there is room."""
    num_items, num_groups = 0, 0
    for seq in range(len(context_lens)):
        query_len = query_starts[seq + 1] - query_starts[seq]
        rows = max(1, min(query_len, ROWS // group_size))
        heads = heads_of_item(len(context_lens), context_lens[seq], group_size * rows, num_kv_heads, threads)
        for row in range(0, query_len, rows):
            num_rows = min(rows, query_len - row)
            first, end = seen_by(context_lens[seq], query_len, row, num_rows, causal, window)
            split = SPLIT if query_len <= MAX_SPLIT_QUERY else max(1, end - first)
            num_parts = max(1, -(-(end - first) // split))
            for head in range(0, num_kv_heads, heads):
                for part in range(num_parts):
                    if num_items < len(items):
                        item = items[num_items]
                        item[0], item[1], item[2], item[3] = seq, row, num_rows, head
                        item[4], item[5] = min(head + heads, num_kv_heads), first + part * split
                        item[6], item[7], item[8] = min(end, first + (part + 1) * split), num_groups, part
                    num_items += 1
                if num_groups < len(groups):
                    groups[num_groups] = num_parts
                num_groups += 1
    return num_items, num_groups


@inlined
def heads_of_item(num_seqs: Any, context_len: Any, head_rows: Any, num_kv_heads: Any, threads: Any) -> Any:
    """Key heads that one item takes: all, if they aren't too many, and fewer where there are too few items for the
    threads. That changes no bit: each head is calculated by itself."""
    num_parts = num_seqs * max(1, context_len // SPLIT)
    most = max(1, MOST_ROWS // head_rows)
    return max(1, min(most, num_kv_heads, num_parts * num_kv_heads // (4 * threads)))


@inlined
def seen_by(context_len: Any, query_len: Any, row: Any, num_rows: Any, causal: Any, window: Any) -> Any:
    """The tokens that some of the rows see: from the first, to before the end."""
    if not causal:
        return 0, context_len
    position = context_len - query_len + row
    first = max(0, position - window + 1) if window > 0 else 0
    return first, max(first, min(context_len, position + num_rows))
