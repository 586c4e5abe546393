"""Where the K or V rows of a tile stand, through the block table: the one thing that makes attention paged."""

from __future__ import annotations

from typing import Any

from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.memory import load_int32


@inlined
def locate(
    problem: Any, pool: Any, seq: Any, start: Any, num_tokens: Any, first_head: Any, heads: Any, rows: Any
) -> Any:
    """Addresses of the tile's K or V rows, by token and head; of a multiple of 4 tokens, the last one's again."""
    table = problem.table + seq * problem.table_row
    block, block_index = -1, -1
    for t in range(-(-num_tokens // 4) * 4):
        token = start + min(t, num_tokens - 1)
        if token // problem.block_size != block_index:
            block_index = token // problem.block_size
            block = load_int32(table + block_index * problem.table_entry)
            if block < 0 or block >= problem.num_blocks:
                return False
        slot = token - block_index * problem.block_size
        place = pool.address + block * pool.block + slot * pool.token + first_head * pool.head
        for head in range(heads):
            rows[t * heads + head] = place + head * pool.head
    return True
