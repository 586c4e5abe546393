"""Mistakes of calls for a whole batch, of steps that share buffers, and of what a preemption leaves behind."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from kvproof_impls.contract import PagedBatch
from kvproof_impls.paged_python import PagedAllocator
from selftest.wrong.catalogue import Wrong


class OneSetOfStepTensors(PagedAllocator):
    """The lengths of every step stand in one buffer, whose copy to the device may not have run yet."""

    batch: PagedBatch | None = None

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        if self.batch is None or self.batch.num_seqs != batch.num_seqs:
            self.batch = batch
        self.batch.context_lens.copy_(batch.context_lens)
        return replace(batch, context_lens=self.batch.context_lens)


class CommitStepTakesTheFirstRow(PagedAllocator):
    def commit_step(self, seqs: Sequence[Hashable]) -> None:
        super().commit_step(seqs[:1])


class CommitStepStopsAtAStranger(PagedAllocator):
    def commit_step(self, seqs: Sequence[Hashable]) -> None:
        for seq in seqs:
            self.commit(seq)


class RecomputationIsAHit(PagedAllocator):
    def preempt(self, seq: Hashable) -> None:
        super().preempt(seq)
        self._preempted.discard(seq)


class PreemptedBlocksStay(PagedAllocator):
    """It will need them again, after all."""

    def preempt(self, seq: Hashable) -> None:
        self._preempted.add(seq)
        self._sequences.pop(seq)


class PreemptedIsStillThere(PagedAllocator):
    def preempt(self, seq: Hashable) -> None:
        table = self._sequences[seq].table
        self._release(table)
        table.clear()


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(OneSetOfStepTensors, "E4", "vllm-project/vllm#32799", "a buffer is filled anew before its copy has run"),
        Wrong(CommitStepTakesTheFirstRow, "B8", "ours", "of a batch only the first sequence is ever found again"),
        Wrong(CommitStepStopsAtAStranger, "E5", "ours", "the rows before an unknown one are published all the same"),
        Wrong(RecomputationIsAHit, "B8", "vllm-project/vllm#25780", "thrashing shows as a good hit rate"),
        Wrong(PreemptedBlocksStay, "A5", "ours", "what a preemption was to make room with belongs to nobody"),
        Wrong(PreemptedIsStillThere, "E5", "ours", "a preempted sequence is live, and can't come back under its id"),
    )
}
