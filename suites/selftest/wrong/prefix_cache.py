"""Wrong prefix caches: what is found is not what was asked for, not computed, or not there."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from kvproof_impls.paged import PagedAllocator
from selftest.wrong.catalogue import Wrong


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


WRONG: dict[str, Wrong] = {
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
}
