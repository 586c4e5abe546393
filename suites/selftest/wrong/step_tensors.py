"""Wrong steps: tensors that do not say what the tables say, batches appended by halves, and violations in silence."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kvproof_impls.contract import PagedBatch
from kvproof_impls.paged_python import PagedAllocator
from selftest.wrong.catalogue import Wrong


class DuplicateIdLeaks(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        self._sequences.pop(seq, None)
        return super().allocate(seq, tokens, key)


class ARowTwiceInAStep(PagedAllocator):
    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        once = dict(zip(seqs, tokens, strict=False))
        return super().append_step(list(once), list(once.values()))


class SlotsCountOnFromTheLast(PagedAllocator):
    """The slot after the last one, as if a sequence's blocks were neighbours."""

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        last = [self._last_slot(seq) for seq in seqs]
        batch = super().append_step(seqs, tokens)
        slots = [batch.slot_mapping[row] if slot is None else slot + 1 for row, slot in enumerate(last)]
        return replace(batch, slot_mapping=torch.tensor(slots, dtype=torch.int64))

    def _last_slot(self, seq: Hashable) -> int | None:
        state = self._sequences.get(seq)
        if state is None or not state.tokens:
            return None
        logical, offset = divmod(len(state.tokens) - 1, self.block_size)
        return state.table[logical] * self.block_size + offset


class LengthsBeforeTheWrite(PagedAllocator):
    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        return replace(batch, context_lens=batch.context_lens - 1)


class SlotsOf32Bits(PagedAllocator):
    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        return replace(batch, slot_mapping=batch.slot_mapping.int())


class StepAppendsUntilTheBlocksRunOut(PagedAllocator):
    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        try:
            return super().append_step(seqs, tokens)
        except MemoryError:
            for seq, token in zip(seqs, tokens, strict=True):
                self.append(seq, [token])
            raise


class StepForgetsItsCopies(PagedAllocator):
    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        return replace(super().append_step(seqs, tokens), copies=())


class OnlyNewColumnsAreCopied(PagedAllocator):
    """A table buffer that is kept: a row that was there before gets the columns that it has grown by."""

    kept: tuple[Any, ...] = ()

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        tables = batch.block_tables.clone()
        for row, old in enumerate(self.kept[: len(tables)]):
            width = min(len(old), tables.shape[1])
            tables[row, :width] = torch.tensor(old[:width], dtype=torch.int32)
        self.kept = tuple(tables[row, : len(self._sequences[seq].table)].tolist() for row, seq in enumerate(seqs))
        return replace(batch, block_tables=tables)


class RowsOfTheLargestStep(PagedAllocator):
    """Buffers that never shrink are handed over whole, with the rows of requests that have ended."""

    lens: list[int] = []  # noqa: RUF012 - replaced, never changed

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        self.lens = [*batch.context_lens_host, *self.lens[batch.num_seqs :]]
        return replace(batch, context_lens=torch.tensor(self.lens, dtype=torch.int32))


class CommonPrefixFromReferenceCounts(PagedAllocator):
    """Blocks with as many owners as the step has rows are taken to be shared by the rows."""

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        owners = [self._references[block] for block in self._sequences[seqs[0]].table]
        shared = next((i for i, count in enumerate(owners) if count < len(seqs)), len(owners))
        return replace(batch, common_prefix_blocks=shared)


class TruncateBeyondTheEnd(PagedAllocator):
    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        super().truncate(seq, min(num_tokens, len(self._sequences[seq].tokens)))


class SlotsOfOneLongRow(PagedAllocator):
    """Rows are laid end to end without padding to a block: the second one begins in the middle of one."""

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        before = torch.tensor([0, *batch.context_lens_host[:-1]]).cumsum(0)[: batch.num_seqs]
        return replace(batch, slot_mapping=batch.slot_mapping + before % self.block_size)


class TablesInTokens(PagedAllocator):
    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        return replace(batch, block_tables=batch.block_tables * self.block_size)


class LengthsOf64Bits(PagedAllocator):
    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        return replace(batch, context_lens=batch.context_lens.long())


class TablesAsWideAsTheFirstStep(PagedAllocator):
    """Buffers sized once; a sequence that has grown past them loses its last blocks."""

    width = 0

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        batch = super().append_step(seqs, tokens)
        self.width = self.width or batch.block_tables.shape[1]
        return replace(batch, block_tables=batch.block_tables[:, : self.width])


WRONG: dict[str, Wrong] = {
    "duplicate_id_leaks": Wrong(
        DuplicateIdLeaks,
        "E5",
        "peers that reuse a live id in silence",
        "the blocks of the first table belong to nobody",
    ),
    "a_row_twice_in_a_step": Wrong(ARowTwiceInAStep, "E5", "ours", "a row that comes twice is dropped without a word"),
    "slots_count_on_from_the_last": Wrong(
        SlotsCountOnFromTheLast,
        "E1",
        "huggingface/text-generation-inference#2711",
        "the next slot is taken to be the neighbour of the last one, across a block boundary too",
    ),
    "lengths_before_the_write": Wrong(
        LengthsBeforeTheWrite, "E1", "ours", "context_lens leaves out the token that the step writes"
    ),
    "slots_of_32_bits": Wrong(
        SlotsOf32Bits, "E1", "ROCm/aiter#4697", "a kernel that reads the mapping as int64 sees pairs of slots"
    ),
    "step_appends_until_the_blocks_run_out": Wrong(
        StepAppendsUntilTheBlocksRunOut, "A6", "ours", "the rows before the one that found no block have grown"
    ),
    "step_forgets_its_copies": Wrong(
        StepForgetsItsCopies, "C1", "ours", "a shared last block is exchanged for one that was never filled"
    ),
    "only_new_columns_are_copied": Wrong(
        OnlyNewColumnsAreCopied,
        "E2",
        "GeeeekExplorer/nano-vllm#258",
        "rows of a kept buffer begin with the blocks of whoever stood there before",
    ),
    "rows_of_the_largest_step": Wrong(
        RowsOfTheLargestStep,
        "E2",
        "huggingface/transformers#42960",
        "a batch that shrank still has the lengths of requests that have ended",
    ),
    "common_prefix_from_reference_counts": Wrong(
        CommonPrefixFromReferenceCounts, "B10", "ours", "a block that others own is taken for one that the rows share"
    ),
    "truncate_beyond_the_end": Wrong(
        TruncateBeyondTheEnd, "E5", "huggingface/transformers#47433", "a rollback to more than there is, in silence"
    ),
    "slots_of_one_long_row": Wrong(
        SlotsOfOneLongRow, "E1", "sgl-project/sglang-jax#20", "the second row's slots begin in the middle of a block"
    ),
    "tables_in_tokens": Wrong(
        TablesInTokens, "E1", "sgl-project/sglang#32902", "a table of tokens where one of blocks is expected"
    ),
    "lengths_of_64_bits": Wrong(
        LengthsOf64Bits, "E1", "flashinfer-ai/flashinfer#1654", "read as int32, every second length is 0"
    ),
    "tables_as_wide_as_the_first_step": Wrong(
        TablesAsWideAsTheFirstStep, "E2", "microsoft/onnxruntime-genai#2583", "a long request after a short one"
    ),
}
