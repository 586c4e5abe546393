"""The blocks that all rows of a step share are counted on from what was known, and never guessed."""

from __future__ import annotations

import random
import time
from itertools import takewhile

import numpy as np
import pytest

pytest.importorskip("numba")

from kvproof_impls.paged import PagedAllocator


def num_common(tables: list[list[int]]) -> int:
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*tables, strict=False)))


@pytest.mark.parametrize("seed", range(8))
def test_it_is_what_comparing_all_tables_gives(seed: int) -> None:
    """Rows come, go, move, are forked, cut back and grown by hand between steps, and the batch changes its length."""
    draw, allocator = random.Random(seed), PagedAllocator(4096, 2)
    allocator.allocate("root", list(range(9)))
    live, counted = ["root"], set()
    for number in range(300):
        choice = draw.choice(("fork", "fork", "free", "truncate", "append", "stranger", "shuffle", "step", "step"))
        seq = draw.choice(live)
        if choice == "fork" and len(live) < 7:
            allocator.fork(seq, number)
            live.insert(draw.randrange(len(live) + 1), number)
        elif choice == "free" and len(live) > 1:
            allocator.free(seq)
            live.remove(seq)
        elif choice == "truncate":
            length = len(allocator.block_table(seq)) * 2 - 2
            allocator.truncate(seq, max(0, length - draw.randrange(6)))
        elif choice == "append":
            allocator.append(seq, [1] * draw.randrange(5))
        elif choice == "stranger" and draw.random() < 0.2:
            allocator.allocate(number, [1])
            live.append(number)
        elif choice == "shuffle":
            draw.shuffle(live)
        rows = live if draw.random() < 0.8 else live[: draw.randrange(len(live)) + 1]
        for _ in range(draw.randrange(3)):
            batch = allocator.append_step(rows, [1] * len(rows))
            assert batch.common_prefix_blocks == num_common([allocator.block_table(row) for row in rows])
            counted.add(batch.common_prefix_blocks)
    assert len(counted) > 3


def step_seconds(num_tokens: int) -> float:
    """Of a step in which 64 samples of one prompt take a new block each, one of them new in the batch."""
    allocator = PagedAllocator(1 << 16, 1, max_num_seqs=128, max_model_len=num_tokens + 64)
    allocator.allocate(0, np.arange(num_tokens, dtype=np.int32))
    for child in range(1, 96):
        allocator.fork(0, child)
    rows, best = list(range(64)), 1.0
    for row in range(32):
        rows[row] = 64 + row
        start = time.perf_counter()
        batch = allocator.append_step(rows, [1] * 64)
        best = min(best, time.perf_counter() - start)
        assert batch.common_prefix_blocks == num_tokens
    return best


def test_a_long_common_prompt_costs_a_step_no_look_at_all_of_it() -> None:
    step_seconds(16)
    assert step_seconds(16 * 1024) < 6 * step_seconds(1024)
