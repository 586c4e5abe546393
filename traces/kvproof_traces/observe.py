"""What a replay looks at after every step: how full the pool is, how much of it is wasted, and the fullest moment."""

from __future__ import annotations

from typing import Any

from kvproof_traces.batching import Batch
from kvproof_traces.entry import Seq
from kvproof_traces.pool_use import PoolUse
from kvproof_traces.tables import BlockTables

LAST_PART = 2 / 3
"""From this share of the requests ended on, blocks have been handed out and given back often enough to be churned."""


class Observer:
    """Sums over steps, and the block tables of the busiest step of the last third; of all where ``num_requests`` is
    infinite."""

    def __init__(self, allocator: Any, batch: Batch, num_requests: float) -> None:
        self.allocator = allocator
        self.batch = batch
        self.num_requests = num_requests
        self.num_steps = 0
        self.peak_running = 0
        self.sum_running = 0
        self.sum_waste = 0.0
        self.sum_utilisation = 0.0
        self.tables: BlockTables | None = None
        self._best = (False, 0)
        self._use = PoolUse(allocator.block_size, allocator.block_table, allocator.num_free_blocks)

    def step(self, num_ended: int) -> None:
        """After a step's appends and before any sequence gives its blocks back."""
        num_running, (num_slots, num_owned) = self.batch.num_live, self._count()
        self.num_steps += 1
        self.peak_running = max(self.peak_running, num_running)
        self.sum_running += num_running
        self.sum_waste += 1 - num_slots / (num_owned * self.allocator.block_size)
        self.sum_utilisation += num_owned / self.allocator.num_blocks
        rank = (num_ended >= LAST_PART * self.num_requests, num_running)
        if rank > self._best:
            self._best = rank
            self.tables = self._tables()

    def mean(self, total: float) -> float:
        """``total`` over the steps seen."""
        return total / self.num_steps if self.num_steps else 0.0

    def _count(self) -> tuple[int, int]:
        calls = self.batch.calls
        changed: dict[Seq, int] = {}
        fresh: dict[Seq, int] = {}
        for seq, shares in calls.changed.items():
            (changed if shares else fresh)[seq] = self.batch.context_len(seq)
        counted = self._use.count(changed, calls.gone, calls.any_changed, fresh)
        calls.forget()
        return counted

    def _tables(self) -> BlockTables:
        allocator, seqs = self.allocator, list(self.batch.live())
        rows = tuple(tuple(map(int, allocator.block_table(seq))) for seq in seqs)
        return BlockTables(allocator.block_size, allocator.pool_blocks, rows, tuple(map(self.batch.context_len, seqs)))
