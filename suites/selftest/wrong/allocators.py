"""Wrong block pools: blocks lost, counted wrong, given out twice, or promised and not there.

Each is a few lines away from a right one, and has to fail a test of the law that it is listed under; that it may break
others as well does not matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.paged import PagedAllocator
from selftest.wrong.catalogue import Wrong


class FreeABlockStillReferenced(PagedAllocator):
    def _release(self, blocks: list[int]) -> None:
        for block in blocks:
            self._references[block] = 1
        super()._release(blocks)


class HitWithoutAReference(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        cached = super().allocate(seq, tokens, key)
        self._release(self._sequences[seq].table[: cached // self.block_size])
        return cached


class AppendWithoutGrowing(PagedAllocator):
    def _make_room(self, state: Any, num_new: int) -> Any:
        if len(state.tokens) % self.block_size:
            return super()._make_room(state, num_new)
        state.room = num_new
        return ()


class GrowABlockEarly(PagedAllocator):
    def append(self, seq: Hashable, tokens: Sequence[int]) -> Any:
        copies = super().append(seq, tokens)
        if self._sequences[seq].room == 0 and self.num_free_blocks():
            self.reserve(seq, 1)
        return copies


class CachedBlocksAreNotCounted(PagedAllocator):
    def num_free_blocks(self) -> int:
        return len(self._blank)


class LeakOnFree(PagedAllocator):
    def free(self, seq: Hashable) -> None:
        del self._sequences[seq].table[-1:]
        super().free(seq)


class FailedAllocateKeepsBlocks(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        try:
            return super().allocate(seq, tokens, key)
        except MemoryError:
            while self.num_free_blocks():
                self._take()
            raise


class CanAllocateOffByOne(PagedAllocator):
    def can_allocate(self, num_tokens: int) -> bool:
        return super().can_allocate(num_tokens + self.block_size)


class BlockEntersTheFreeListTwice(PagedAllocator):
    def _release(self, blocks: list[int]) -> None:
        super()._release(blocks)
        self._blank += [block for block in blocks[-1:] if block in self._blank]


WRONG: dict[str, Wrong] = {
    "free_a_block_still_referenced": Wrong(
        FreeABlockStillReferenced, "A3", "vllm-project/vllm#37076", "the first of two owners to leave frees the block"
    ),
    "hit_without_a_reference": Wrong(
        HitWithoutAReference,
        "A3",
        "huggingface/text-generation-inference#2490",
        "a block found cached is not counted as owned, and is evicted under its reader",
    ),
    "append_at_a_boundary_without_growing": Wrong(
        AppendWithoutGrowing, "A7", "GeeeekExplorer/nano-vllm#66", "a full last block, and the next token has no slot"
    ),
    "grow_a_block_early": Wrong(GrowABlockEarly, "A1", "ours", "a block is held before a token needs it"),
    "cached_blocks_are_not_counted": Wrong(
        CachedBlocksAreNotCounted,
        "A1",
        "UbiquitousLearning/mllm#656",
        "free blocks that are still findable are missing from the count",
    ),
    "leak_on_free": Wrong(LeakOnFree, "A5", "kekzl/imp#1115", "the last block of a sequence never comes back"),
    "failed_allocate_keeps_blocks": Wrong(
        FailedAllocateKeepsBlocks, "A6", "guoqingbao/xinfer#405", "what was taken before the pool ran dry"
    ),
    "can_allocate_off_by_one": Wrong(CanAllocateOffByOne, "A6", "ours", "the last free block is never admitted to"),
    "block_enters_the_free_list_twice": Wrong(
        BlockEntersTheFreeListTwice, "A2", "sgl-project/sglang#27779", "two sequences get one block"
    ),
}
