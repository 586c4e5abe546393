"""Wrong allocators, each a few lines away from a right one, named after what is wrong with it.

Each has to fail a test of the law that it is listed under; that it may break others as well does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from kvproof_impls.paged import PagedAllocator


class Wrong(NamedTuple):
    factory: Callable[[int, int], Any]
    law: str
    origin: str
    """A public report of this mistake, or where else it comes from."""
    why: str


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


class TruncateKeepsTheBlock(PagedAllocator):
    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        state = self._sequences[seq]
        if not 0 <= num_tokens <= len(state.tokens):
            raise ValueError(num_tokens)
        del state.tokens[num_tokens:], state.nodes[num_tokens // self.block_size :]
        state.room = 0


class PublishAtAllocation(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        cached = super().allocate(seq, tokens, key)
        self.commit(seq)
        return cached


class FullHitLeavesNothing(PagedAllocator):
    def _find(self, tokens: Sequence[int], root: Hashable) -> tuple[list[int], list[int]]:
        return super()._find([*tokens, 0], root)


class HashOf4Bits(PagedAllocator):
    def _name(self, parent: Hashable, tokens: Iterable[int]) -> Hashable:
        return hash((parent, tuple(tokens))) % 16


class NameWithoutTheParent(PagedAllocator):
    def _name(self, parent: Hashable, tokens: Iterable[int]) -> Hashable:
        return tuple(tokens)


class EvictedBlockStaysFindable(PagedAllocator):
    def _take(self) -> int:
        names = dict(self._cached)
        block = super()._take()
        for name in names.keys() - self._cached.keys():
            self._cached[name] = block
            self._labels[block] = (name, self._last_node)
        return block


class RewrittenBlockStaysFindable(PagedAllocator):
    def _make_room(self, state: Any, num_new: int) -> Any:
        labels, self._labels = self._labels, {}
        try:
            return super()._make_room(state, num_new)
        finally:
            self._labels = labels


class ResetSparesLiveBlocks(PagedAllocator):
    def reset_prefix_cache(self) -> None:
        for block in list(self._evictable):
            self._unpublish(block)
            self._blank.append(block)
        self._evictable.clear()


class CommitPublishesNothing(PagedAllocator):
    def commit(self, seq: Hashable) -> None:
        self.block_table(seq)


class BlockEntersTheFreeListTwice(PagedAllocator):
    def _release(self, blocks: list[int]) -> None:
        super()._release(blocks)
        self._blank += [block for block in blocks[-1:] if block in self._blank]


class MoveABlockWhileItIsWritten(PagedAllocator):
    def free(self, seq: Hashable) -> None:
        super().free(seq)
        for state in self._sequences.values():
            if self._blank and state.table and self._references[state.table[-1]] == 1:
                old, state.table[-1] = state.table[-1], self._take()
                self._release([old])


class DuplicateIdLeaks(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        self._sequences.pop(seq, None)
        return super().allocate(seq, tokens, key)


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
    "truncate_keeps_the_block": Wrong(
        TruncateKeepsTheBlock, "D4", "huggingface/transformers#47433", "rejected tokens leave their blocks behind"
    ),
    "publish_at_allocation": Wrong(
        PublishAtAllocation, "B4", "sgl-project/sglang#35270", "a prefix is found before it is computed"
    ),
    "full_hit_leaves_nothing": Wrong(FullHitLeavesNothing, "B3", "vllm-project/vllm#3239", "a query without tokens"),
    "hash_of_4_bits": Wrong(
        HashOf4Bits, "B1", "waybarrios/vllm-mlx#444", "a hash that collides, and nobody compares tokens"
    ),
    "name_without_the_parent": Wrong(NameWithoutTheParent, "B1", "ours", "a block is found behind another prefix"),
    "evicted_block_stays_findable": Wrong(
        EvictedBlockStaysFindable, "B2", "ovg-project/kvcached#362", "the map still names a block given away"
    ),
    "rewritten_block_stays_findable": Wrong(
        RewrittenBlockStaysFindable,
        "B5",
        "sgl-project/sglang#35270",
        "a cached block is cut by a rollback and written anew under its old name",
    ),
    "reset_spares_live_blocks": Wrong(
        ResetSparesLiveBlocks, "B9", "vllm-project/vllm-omni#6739", "old weights' blocks are found after a reset"
    ),
    "commit_publishes_nothing": Wrong(CommitPublishesNothing, "B8", "ours", "a prefix cache that never hits"),
    "block_enters_the_free_list_twice": Wrong(
        BlockEntersTheFreeListTwice, "A2", "sgl-project/sglang#27779", "two sequences get one block"
    ),
    "move_a_block_while_it_is_written": Wrong(
        MoveABlockWhileItIsWritten,
        "D5",
        "ggml-org/llama.cpp#12253",
        "the write in flight lands where the sequence no longer reads",
    ),
    "duplicate_id_leaks": Wrong(
        DuplicateIdLeaks,
        "E5",
        "peers that reuse a live id in silence",
        "the blocks of the first table belong to nobody",
    ),
}
