"""Wrong prefix caches: what is found is not what was asked for, not computed, or not there."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from kvproof_impls.paged_python import PagedAllocator
from kvproof_impls.paged_python.allocator import tagged
from kvproof_impls.paged_python.pool import SequenceState
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


class FoundBlocksCountAsRoom(PagedAllocator):
    """Fresh blocks are taken before the found ones are owned."""

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        self._refuse_known(seq)
        tokens = list(tokens)
        hits, nodes = self._find(tokens, tagged(key))
        num_fresh = self._blocks_for(len(tokens)) - len(hits)
        self._require(num_fresh)
        table = hits + [self._take() for _ in range(num_fresh)]
        for block in hits:
            self._evictable.pop(block, None)
            self._references[block] += 1
        self._sequences[seq] = state = SequenceState(tokens, table, nodes, tagged(key))
        state.room = len(table) * self.block_size - len(tokens)
        return len(hits) * self.block_size


class FoundIsRemembered(PagedAllocator):
    """What a look-up has found is used at the admission, whatever became of the blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.found: dict[Hashable, tuple[list[int], list[int]]] = {}

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        hits, nodes = self._find(tokens, tagged(key))
        self.found[tuple(tokens), tagged(key)] = hits, nodes
        return len(hits) * self.block_size

    def _find(self, tokens: Sequence[int], root: Hashable) -> tuple[list[int], list[int]]:
        hits, nodes = self.found.pop((tuple(tokens), root), None) or super()._find(tokens, root)
        for block in hits:
            if block in self._blank:
                self._blank.remove(block)
                self._evictable[block] = None
        return hits, nodes


class EvictFromTheHead(PagedAllocator):
    def _release(self, blocks: list[int]) -> None:
        super()._release(blocks[::-1])


class EvictTheMostRecent(PagedAllocator):
    def _take(self) -> int:
        if self._evictable:
            self._evictable.move_to_end(next(reversed(self._evictable)), last=False)
        return super()._take()


class CachedBlocksGoFirst(PagedAllocator):
    def _take(self) -> int:
        blank, self._blank = self._blank, [] if self._evictable else self._blank
        block = super()._take()
        self._blank = [free for free in blank if free != block]
        return block


class TokensOf8Bits(PagedAllocator):
    def _name(self, parent: Hashable, tokens: Iterable[int]) -> Hashable:
        return parent, bytes(token % 256 for token in tokens)


class KeyWithoutItsVersion(PagedAllocator):
    """An adapter that is loaded anew under its old name finds what the old one computed."""

    def _find(self, tokens: Sequence[int], root: Any) -> tuple[list[int], list[int]]:
        return super()._find(tokens, (root[0][:1],))

    def _name(self, parent: Any, tokens: Iterable[int]) -> Hashable:
        return super()._name((parent[0][:1],) if isinstance(parent, tuple) else parent, tokens)


class KeyFieldsAreJoined(PagedAllocator):
    """Adapter and salt one after the other, so that one can end where the other begins."""

    def _name(self, parent: Any, tokens: Iterable[int]) -> Hashable:
        return super()._name("".join(parent[0]) if isinstance(parent, tuple) else parent, tokens)


class KeyReducedToANumber(PagedAllocator):
    """As an image hash that is reduced into a token id."""

    def _name(self, parent: Any, tokens: Iterable[int]) -> Hashable:
        return super()._name(sum(map(len, parent[0])) + 1_000_000 if isinstance(parent, tuple) else parent, tokens)


class ResetDoesNothing(PagedAllocator):
    def reset_prefix_cache(self) -> None:
        pass


class HitsInStepsOfManyBlocks(PagedAllocator):
    """The granularity is the least common multiple of all groups', which a short prompt never reaches."""

    def _find(self, tokens: Sequence[int], root: Hashable) -> tuple[list[int], list[int]]:
        hits, nodes = super()._find(tokens, root)
        num_kept = len(hits) // 32 * 32
        return hits[:num_kept], nodes[:num_kept]


class PartialBlockIsPublished(PagedAllocator):
    """The last block is findable by the tokens it will have when it is full of zeros."""

    def commit(self, seq: Hashable) -> None:
        super().commit(seq)
        state = self._sequences[seq]
        missing = -len(state.tokens) % self.block_size
        if missing and state.publishes and len(state.nodes) == len(state.tokens) // self.block_size:
            parent = state.nodes[-1] if state.nodes else state.root
            tail = state.tokens[len(state.nodes) * self.block_size :]
            self._publish(self._name(parent, [*tail, *tail[-1:] * missing]), state.table[-1])


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
    "found_blocks_count_as_room": Wrong(
        FoundBlocksCountAsRoom,
        "B6",
        "NVIDIA/Megatron-LM#5822",
        "the blocks that were found are evicted to make room for the rest of the prompt",
    ),
    "found_is_remembered": Wrong(
        FoundIsRemembered, "B6", "vllm-project/vllm#17305", "a count of cached tokens that is older than the eviction"
    ),
    "evict_from_the_head": Wrong(
        EvictFromTheHead, "A8", "ours", "a parent goes before its child, which is then cached in vain"
    ),
    "evict_the_most_recent": Wrong(EvictTheMostRecent, "A8", "ours", "what was used last goes first"),
    "cached_blocks_go_first": Wrong(
        CachedBlocksGoFirst, "A8", "vllm-project/vllm#42656", "useful prefixes go while empty blocks are free"
    ),
    "tokens_of_8_bits": Wrong(TokensOf8Bits, "B1", "waybarrios/vllm-mlx#444", "tokens 65 and 321 have one name"),
    "key_without_its_version": Wrong(
        KeyWithoutItsVersion, "B1", "vllm-project/vllm#42125", "an adapter loaded anew finds the old one's blocks"
    ),
    "key_fields_are_joined": Wrong(
        KeyFieldsAreJoined, "B1", "vllm-project/vllm#44701", "a salt can be mistaken for an adapter's name"
    ),
    "key_reduced_to_a_number": Wrong(
        KeyReducedToANumber, "B1", "sgl-project/sglang#2151", "an image hash reduced to a token id collides"
    ),
    "reset_does_nothing": Wrong(ResetDoesNothing, "B9", "vllm-project/vllm-omni#6739", "a reset that is a stub"),
    "hits_in_steps_of_many_blocks": Wrong(
        HitsInStepsOfManyBlocks, "B8", "vllm-project/vllm-ascend#16270", "short prompts are never found"
    ),
    "partial_block_is_published": Wrong(
        PartialBlockIsPublished, "B4", "Avarok-Cybersecurity/atlas#1193", "a live tail is found by another request"
    ),
}
