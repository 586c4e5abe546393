"""Wrong windows: blocks let go too early, twice, or along with the block that stands for nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.contract import Copies
from selftest.wrong.catalogue import Wrong
from selftest.wrong.right_allocators import SmallWindow


class WindowOfWhatIsScheduled(SmallWindow):
    """Measured from the end of a chunk, whose first queries see further back."""

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        copies = super().append(seq, tokens)
        state = self._sequences[seq]
        self._release_unseen(state, len(state.tokens))
        return copies


class WindowRoundsUp(SmallWindow):
    """The block in which the window begins goes with those before it."""

    def _release_unseen(self, state: Any, first_query: int) -> None:
        super()._release_unseen(state, first_query + (self.block_size - 1 if first_query >= self.window else 0))


class HolesKeepTheirOldIds(SmallWindow):
    """What was given back still stands in the table, and is given back again with the rest."""

    def _release_unseen(self, state: Any, first_query: int) -> None:
        table = list(state.table)
        super()._release_unseen(state, first_query)
        for index, block in enumerate(state.table):
            if block == self.null_block and table[index] != self.null_block:
                state.table[index] = table[index]


class NullBlockEntersTheFreeList(SmallWindow):
    def free(self, seq: Hashable) -> None:
        has_holes = seq in self._sequences and self.null_block in self._sequences[seq].table
        super().free(seq)
        if has_holes:
            self._blank.append(self.null_block)


class ReservedBlockIsHandedOut(SmallWindow):
    """The free list starts as the whole pool; the count is right."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._blank.append(self.null_block)

    def num_free_blocks(self) -> int:
        return max(0, super().num_free_blocks() - 1)


class HolesAreNeverReleased(SmallWindow):
    """The table forgets the block, and so does everybody."""

    def _release_unseen(self, state: Any, first_query: int) -> None:
        before = list(state.table)
        super()._release_unseen(state, first_query)
        for block in {*before} - {*state.table}:
            if block in self._blank:
                self._blank.remove(block)
            self._evictable.pop(block, None)


class WindowedBranchFreesForBoth(SmallWindow):
    """What one branch does not see any more is taken from the other as well."""

    def _release_unseen(self, state: Any, first_query: int) -> None:
        for block in state.table[: max(0, first_query - self.window + 1) // self.block_size]:
            self._references[block] = min(1, self._references[block])
        super()._release_unseen(state, first_query)


class CanAllocateCapsAtTheWindow(SmallWindow):
    def can_allocate(self, num_tokens: int) -> bool:
        return super().can_allocate(min(num_tokens, self.window))


class StepTablesWithoutTheHoles(SmallWindow):
    """Rows begin at the first block that is still there, as if it were logical block 0."""

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> Any:
        batch = super().append_step(seqs, tokens)
        for row, seq in enumerate(seqs):
            num_gone = self._sequences[seq].num_gone
            batch.block_tables[row] = batch.block_tables[row].roll(-num_gone)
        return batch


WRONG: dict[str, Wrong] = {
    "window_of_what_is_scheduled": Wrong(
        WindowOfWhatIsScheduled,
        "G11",
        "vllm-project/vllm-ascend#13501",
        "blocks are let go by the count of scheduled tokens, not of computed ones",
    ),
    "window_rounds_up": Wrong(WindowRoundsUp, "G11", "ours", "the block in which the window begins is let go"),
    "holes_keep_their_old_ids": Wrong(
        HolesKeepTheirOldIds, "A9", "sgl-project/sglang#27779", "a block let go is freed again with its sequence"
    ),
    "holes_are_never_released": Wrong(HolesAreNeverReleased, "A5", "ours", "a block let go belongs to nobody"),
    "null_block_enters_the_free_list": Wrong(
        NullBlockEntersTheFreeList, "A4", "vllm-project/vllm#50531", "the entry that stands for nothing is freed"
    ),
    "reserved_block_is_handed_out": Wrong(
        ReservedBlockIsHandedOut, "A4", "sgl-project/sglang#36207", "padding rows write where a sequence reads"
    ),
    "windowed_branch_frees_for_both": Wrong(
        WindowedBranchFreesForBoth, "A3", "ours", "a branch that moved on frees what the other still reads"
    ),
    "can_allocate_caps_at_the_window": Wrong(
        CanAllocateCapsAtTheWindow, "A6", "vllm-project/vllm#7470", "the check caps at the window, the admission not"
    ),
    "step_tables_without_the_holes": Wrong(
        StepTablesWithoutTheHoles, "E1", "huggingface/transformers#47911", "past the window the start is stale"
    ),
}
