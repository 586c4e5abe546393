"""Wrong copies: forgotten, made in the wrong direction, or one after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.paged_python import PagedAllocator
from selftest.wrong.catalogue import Wrong


class SkipCopyOnWrite(PagedAllocator):
    def _make_room(self, state: Any, num_new: int) -> tuple[()]:
        num_fresh = max(0, self._blocks_for(len(state.tokens) + num_new) - len(state.table))
        self._require(num_fresh)
        state.table.extend([self._take() for _ in range(num_fresh)])
        state.room = len(state.table) * self.block_size - len(state.tokens)
        return ()


class CopyBackwards(PagedAllocator):
    def append(self, seq: Hashable, tokens: Sequence[int]) -> list[tuple[int, int]]:
        return [(destination, source) for source, destination in super().append(seq, tokens)]


class CopyThroughAScratchBlock(PagedAllocator):
    def append(self, seq: Hashable, tokens: Sequence[int]) -> list[tuple[int, int]]:
        copies = list(super().append(seq, tokens))
        if copies and self._blank:
            (source, destination), scratch = copies[0], self._blank[-1]
            return [(source, scratch), (scratch, destination)]
        return copies


class ForkOfTheWrongParent(PagedAllocator):
    """The rank after sorting is taken for the index of the parent."""

    def fork(self, parent: Hashable, child: Hashable) -> Any:
        first = next(iter(self._sequences), parent)
        is_as_long = parent in self._sequences and len(self._sequences[first].tokens) == len(
            self._sequences[parent].tokens
        )
        return super().fork(first if is_as_long else parent, child)


class BranchesShareTheirBookkeeping(PagedAllocator):
    """The child's list of blocks is the parent's."""

    def fork(self, parent: Hashable, child: Hashable) -> Any:
        copies = super().fork(parent, child)
        if len(self._sequences[child].table) == len(self._sequences[parent].table):
            self._sequences[child].table = self._sequences[parent].table
        return copies


WRONG: dict[str, Wrong] = {
    "skip_copy_on_write": Wrong(
        SkipCopyOnWrite,
        "C1",
        "Avarok-Cybersecurity/atlas#1193",
        "append writes into a block that a fork shares",
    ),
    "copy_backwards": Wrong(CopyBackwards, "C1", "ours", "the copy goes from the new block into the shared one"),
    "copy_through_a_scratch_block": Wrong(
        CopyThroughAScratchBlock, "C2", "ours", "two copies that are right in one order only; kernels make them at once"
    ),
    "fork_of_the_wrong_parent": Wrong(
        ForkOfTheWrongParent, "C1", "NVIDIA/TensorRT-LLM#15621", "a beam continues another beam's history"
    ),
    "branches_share_their_bookkeeping": Wrong(
        BranchesShareTheirBookkeeping, "C1", "huggingface/transformers#46735", "one branch's state moves with another"
    ),
}
