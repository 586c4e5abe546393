"""Wrong block pools: blocks lost, counted wrong, given out twice, or promised and not there.

Each is a few lines away from a right one, and has to fail a test of the law that it is listed under; that it may break
others as well does not matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.paged_python import PagedAllocator
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


class TheLastBlockIsFreedByBothPaths(PagedAllocator):
    """The cache's path and the overlap scheduler's path both release the slot allocated ahead."""

    def free(self, seq: Hashable) -> None:
        last = [] if seq in self._swapped else self._sequences[seq].table[-1:]
        super().free(seq)
        self._blank += [block for block in last if block in self._blank]


class FailedAppendKeepsItsCopy(PagedAllocator):
    """The first of two resources is taken, the second refused, and the first stays taken."""

    def _make_room(self, state: Any, num_new: int) -> Any:
        try:
            return super()._make_room(state, num_new)
        except MemoryError:
            if self.num_free_blocks():
                self._take()
            raise


class CanAllocateCountsThePrompt(PagedAllocator):
    """The check rounds down, the admission rounds up."""

    def can_allocate(self, num_tokens: int) -> bool:
        return super().can_allocate(num_tokens // self.block_size * self.block_size)


class CachedBlocksAreCountedTwice(PagedAllocator):
    def num_free_blocks(self) -> int:
        return super().num_free_blocks() + sum(self._references[block] > 0 for block in self._labels)


class ACountOfItsOwn(PagedAllocator):
    """A second source of truth, which rollbacks forget to tell."""

    drift = 0

    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        before = super().num_free_blocks()
        super().truncate(seq, num_tokens)
        self.drift += super().num_free_blocks() - before

    def num_free_blocks(self) -> int:
        return max(0, super().num_free_blocks() - self.drift)


class ThePoolBeginsAtOne(PagedAllocator):
    """Ids from 1 to the size of the pool: the last one is past its end."""

    def block_table(self, seq: Hashable) -> Sequence[int]:
        return [block + 1 for block in super().block_table(seq)]


class TableOfTheAdmission(PagedAllocator):
    """The list of block ids that was read first is kept, and the sequence outgrows it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.read: dict[Hashable, list[int]] = {}

    def block_table(self, seq: Hashable) -> Sequence[int]:
        return self.read.setdefault(seq, list(super().block_table(seq)))

    def free(self, seq: Hashable) -> None:
        super().free(seq)
        self.read.pop(seq, None)


class ReserveLeavesOutTheBonusToken(PagedAllocator):
    def reserve(self, seq: Hashable, num_tokens: int) -> Any:
        return super().reserve(seq, num_tokens - 1 if num_tokens > 0 else num_tokens)


class CommitFreesDuplicatesThatItsTableNames(PagedAllocator):
    """Part of the prefix is cached already: the duplicate goes, and the table still points to it."""

    def _publish(self, name: Hashable, block: int) -> int:
        node = super()._publish(name, block)
        if self._cached[name] != block and self._references[block] == 1:
            self._release([block])
            self._references[block] = 1
        return node


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
    "the_last_block_is_freed_by_both_paths": Wrong(
        TheLastBlockIsFreedByBothPaths, "A2", "sgl-project/sglang-jax#982", "two release paths for one block"
    ),
    "failed_append_keeps_its_copy": Wrong(
        FailedAppendKeepsItsCopy, "A6", "sgl-project/sglang#16067", "of two resources the first is not given back"
    ),
    "can_allocate_counts_the_prompt": Wrong(
        CanAllocateCountsThePrompt, "A6", "GeeeekExplorer/nano-vllm#66", "check and admission round differently"
    ),
    "cached_blocks_are_counted_twice": Wrong(
        CachedBlocksAreCountedTwice, "A1", "sgl-project/sglang#35270", "available and evictable exceed the pool"
    ),
    "a_count_of_its_own": Wrong(
        ACountOfItsOwn, "A1", "vllm-project/vllm-metal#128", "two sources of truth for what is free"
    ),
    "the_pool_begins_at_one": Wrong(
        ThePoolBeginsAtOne, "A1", "NVIDIA/TensorRT-LLM#4505", "with the pool full, an id past its end"
    ),
    "table_of_the_admission": Wrong(
        TableOfTheAdmission, "A7", "NVIDIA/TensorRT-LLM#13320", "the token count grows, the list of blocks does not"
    ),
    "reserve_leaves_out_the_bonus_token": Wrong(
        ReserveLeavesOutTheBonusToken, "A7", "vllm-project/vllm#9730", "one slot less than drafts and bonus need"
    ),
    "commit_frees_duplicates_that_its_table_names": Wrong(
        CommitFreesDuplicatesThatItsTableNames,
        "A3",
        "sgl-project/mini-sglang#142",
        "a block cached twice is freed under the sequence that still reads it",
    ),
}
