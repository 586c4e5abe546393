"""The step tensors of an allocator that doesn't give them, built as an engine without a batched step has to; and the
look at a step's tensors and tables before its time is believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof_suites.bench.serving_workload import MOST_RUNNING
from kvproof_suites.outcome import LawBroken

MOST_BLOCKS_A_ROW = 1024

Lengths = npt.NDArray[np.int64]


class StepBuffers:
    """NumPy arrays that are filled anew in each step, every row from its table: the quickest way that holds whatever a
    table did since the last step. A ``commit`` may have put another block anywhere in it."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.block_tables = np.zeros((MOST_RUNNING, MOST_BLOCKS_A_ROW), np.int32)
        self.context_lens = np.zeros(MOST_RUNNING, np.int32)
        self.slot_mapping = np.zeros(MOST_RUNNING, np.int64)
        self.rows = np.arange(MOST_RUNNING)

    def build(self, block_table: Callable[[int], Sequence[int]], seqs: Sequence[int], lengths: Lengths) -> StepBuffers:
        rows, num_rows = self.block_tables, len(seqs)
        for row, seq in enumerate(seqs):
            table = block_table(seq)
            rows[row, : len(table)] = table
        last = lengths - 1
        self.context_lens[:num_rows] = lengths
        blocks = rows[self.rows[:num_rows], last // self.block_size].astype(np.int64)
        self.slot_mapping[:num_rows] = blocks * self.block_size + last % self.block_size
        return self


def require_true_rows(pool: Any, seqs: Sequence[int], lengths: Lengths, batch: Any) -> None:
    """The tensors say what the tables say, and no two sequences write into one slot.

    Raises:
        LawBroken: naming the row that is wrong.
    """
    num_rows, size = len(seqs), pool.block_size
    tables, context = np.asarray(batch.block_tables)[:num_rows], np.asarray(batch.context_lens)[:num_rows]
    slots = np.asarray(batch.slot_mapping)[:num_rows]
    for row, seq in enumerate(seqs):
        table, last = list(pool.block_table(seq)), int(lengths[row]) - 1
        slot = table[last // size] * size + last % size if last // size < len(table) else None
        if (
            slot is None
            or tables[row, : len(table)].tolist() != table
            or (context[row], slots[row]) != (last + 1, slot)
        ):
            raise LawBroken(f"not timed: row {row} of a step, sequence {seq} of {last + 1} tokens, has not its table")
    if len(set(slots.tolist())) != num_rows:
        raise LawBroken(f"not timed: {num_rows} sequences write into {len(set(slots.tolist()))} slots")
