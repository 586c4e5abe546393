"""What a replay looks at after every step: how full the pool is, how much of it is wasted, and the fullest moment."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from kvproof_traces.pool_use import PoolUse
from kvproof_traces.tables import BlockTables

LAST_PART = 2 / 3
"""From this share of the requests ended on, blocks have been handed out and given back often enough to be churned."""


class Observer:
    """Sums over steps, and the block tables of the busiest step of the last third."""

    def __init__(self, allocator: Any, num_requests: int) -> None:
        self.allocator = allocator
        self.num_requests = num_requests
        self.num_steps = 0
        self.peak_running = 0
        self.sum_running = 0
        self.sum_waste = 0.0
        self.sum_utilisation = 0.0
        self.tables: BlockTables | None = None
        self._best = (False, 0)
        self._use = PoolUse(allocator.block_size, allocator.block_table)

    def step(self, context_lens: Mapping[Any, int], changed: Set[Any], num_ended: int) -> None:
        """After a step's appends and before any sequence gives its blocks back.

        ``context_lens``: of each live sequence. ``changed``: those whose table may differ by more than one token's.
        """
        block_size, num_running = self.allocator.block_size, len(context_lens)
        num_slots, num_owned = self._use.count(context_lens, changed)
        self.num_steps += 1
        self.peak_running = max(self.peak_running, num_running)
        self.sum_running += num_running
        self.sum_waste += 1 - num_slots / (num_owned * block_size)
        self.sum_utilisation += num_owned / self.allocator.num_blocks
        rank = (num_ended >= LAST_PART * self.num_requests, num_running)
        if rank > self._best:
            self._best = rank
            rows = tuple(tuple(map(int, self.allocator.block_table(seq))) for seq in context_lens)
            self.tables = BlockTables(block_size, self.allocator.pool_blocks, rows, tuple(context_lens.values()))

    def mean(self, total: float) -> float:
        """``total`` over the steps seen."""
        return total / self.num_steps if self.num_steps else 0.0
