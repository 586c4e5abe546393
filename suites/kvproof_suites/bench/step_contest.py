"""Step tensors in a contest: decode steps of one batch until block tables, lengths and slots lie in arrays, by the
allocator's own batched step, or by a call for each sequence and a loop over their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvproof_suites.bench.contests import Entrant, NotTimed, Prepared, Ready
from kvproof_suites.bench.race import Contestant
from kvproof_suites.bench.serving_workload import MOST_RUNNING
from kvproof_suites.bench.step_buffers import StepBuffers, require_true_rows
from kvproof_suites.bench.timing import Timing
from kvproof_suites.under_test import MakeAllocator

PROMPT_TOKENS = 500
"""Off every block size, so that the steps of a sample cross block boundaries of small blocks and not of large ones."""
STEPS = 16
"""Of one sample."""


@dataclass
class Batch:
    """A pool with its sequences, and the tensors of the last step."""

    pool: Any
    seqs: list[int]
    tensors: Any = None

    def append_step(self) -> None:
        for token in range(STEPS):
            self.tensors = self.pool.append_step(self.seqs, [token] * len(self.seqs))

    def append_and_fill(self, buffers: StepBuffers) -> None:
        append, table, seqs = self.pool.append, self.pool.block_table, self.seqs
        for token in range(STEPS):
            for seq in seqs:
                append(seq, [token])
            self.tensors = buffers.build(table, seqs, np.full(len(seqs), PROMPT_TOKENS + token + 1))

    def require_right(self) -> None:
        lengths = np.full(len(self.seqs), PROMPT_TOKENS + STEPS)
        require_true_rows(self.pool, self.seqs, lengths, self.tensors)


@dataclass(frozen=True)
class StepContest:
    makers: Mapping[str, MakeAllocator]

    def prepare(self, entrants: Sequence[Entrant]) -> Iterator[tuple[Entrant, Prepared]]:
        for name, cell in entrants:
            try:
                yield (name, cell), self._ready((name, cell), self.makers[name])
            except Exception as error:  # of the implementation: its own row tells it
                yield (name, cell), error

    def _ready(self, entrant: Entrant, make: MakeAllocator) -> Prepared:
        cell = entrant[1]
        if cell.batch > MOST_RUNNING:
            return NotTimed(f"a step of {cell.batch} sequences; at most {MOST_RUNNING} are timed")
        blocks_each = -(-(PROMPT_TOKENS + STEPS) // cell.block_size)
        size = (cell.batch * blocks_each, cell.block_size)
        pool = make(*size)
        if cell.operation == "append_step" and not hasattr(pool, "append_step"):
            return NotTimed("has no append_step")
        if not _admits(pool, cell.batch):
            return NotTimed(f"admits fewer than {cell.batch} sequences into the blocks that their tokens need")
        buffers = StepBuffers(cell.block_size)
        call: Callable[[Batch], None] = Batch.append_step
        if cell.operation != "append_step":
            call = lambda batch: batch.append_and_fill(buffers)  # noqa: E731
        latest: list[Batch] = []

        def prepare(given: Any) -> Batch:
            latest[:] = [started(make(*size), cell.batch)]
            return latest[0]

        contestant = Contestant(call, [None], prepare, lambda place, result: latest[0].require_right())

        def figures(timings: Mapping[Any, Timing]) -> dict[str, Any]:
            step = timings[entrant].per(STEPS)
            told = {**step.fields(), "context_len": PROMPT_TOKENS, "us_per_step": 1e6 * step.median_seconds}
            return told | {"ns_per_token": 1e9 * step.median_seconds / cell.batch}

        return Ready(contestant, figures)


def _admits(pool: Any, batch: int) -> bool:
    """With room for the steps that follow."""
    try:
        for seq in started(pool, batch).seqs:
            pool.append(seq, [0] * STEPS)
    except MemoryError:
        return False
    return True


def started(pool: Any, batch: int) -> Batch:
    for seq in range(batch):
        pool.allocate(seq, range_of(seq))
    return Batch(pool, list(range(batch)))


def range_of(seq: int) -> list[int]:
    """A prompt of its own for each sequence."""
    return list(range(seq * PROMPT_TOKENS, (seq + 1) * PROMPT_TOKENS))
