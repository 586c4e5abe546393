"""transformers' PagedAttentionCache, the block allocator behind its continuous batching.

Read in transformers 5.24.0, generation/continuous_batching/cache.py and cache_allocators/. The cache always makes its
tensor; it is given the smallest model whose block is a whole sector (128 bytes for 16 tokens), and nothing is written
there.

What it does otherwise than others, all policy: a fork copies the partly filled tail at once, for the child; equal
complete blocks become one when they are marked complete, so that a table may change in ``commit``; when blocks run
short all cached ones are evicted together (``evict_cached_blocks``). Not here, since the library has none:
reserve, truncate, a reset of the cache under live requests, keys (salt, adapter) in the hash. Requests with a key are
kept out of the prefix cache. Swapping exists (offloading_manager.py) but moves tensors itself, and is not driven.

StaticCache and DynamicCache are no allocators: the first is one tensor whose row is the place in the batch, which the
caller gives; the second is concatenated anew for every token, so that no slot keeps its place. ``contiguous-max`` is
what the first would be.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any

from kvproof_impls.token_lists import int32_list

Copies = Sequence[tuple[int, int]]

FULL = "full_attention"
SECTOR_ALIGNMENT = 128
"""Bytes, cache.py; a block that is a multiple of it is a sector of its own, and blocks are counted one by one."""
BYTES_A_DIM = 4
"""Key and value of one head and one channel in float16."""
TRASH_SECTORS = 2
"""At the front of the pool, never handed out (cache_pool.py, num_reserved_sectors)."""


class TransformersAllocator:
    """Contract ``BlockAllocator``. Token ids beyond int32 are refused: the hash packs them into C ints.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        from transformers.generation.continuous_batching.requests import RequestState

        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.pool_blocks = num_blocks + TRASH_SECTORS
        self._cache = make_cache(num_blocks, block_size)
        self._blocks = self._cache.cache_allocators[FULL]
        self._new_state = RequestState
        self._states: dict[Hashable, Any] = {}
        self._num_marked: dict[Hashable, int] = {}  # complete blocks whose hash is known
        self._keyed: set[Hashable] = set()

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """As ``Scheduler._infer_request_tokens`` and ``_schedule_request`` do: match, then store what is left."""
        self._refuse_known(seq)
        tokens = plain(tokens)
        state = self._new_state(request_id=seq, initial_tokens=list(tokens), max_new_tokens=None)
        num_cached: int = 0 if key else self._cache.search_prefix_match(seq, tokens)
        state.position_offset = num_cached
        if not self._store(state, len(tokens) - num_cached):
            self._cache.free_blocks(seq)
            raise MemoryError(f"no room for {len(tokens) - num_cached} tokens: {self.num_free_blocks()} blocks free")
        state.position_offset = len(tokens)
        self._states[seq], self._num_marked[seq] = state, num_cached // self.block_size
        if key:
            self._keyed.add(seq)
        return num_cached

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        state, new, num_new = self._states[seq], plain(tokens), len(tokens)
        if not (self._cache.can_store_request_tokens(state, num_new) or self._store(state, num_new)):
            raise MemoryError(f"no room for {num_new} tokens of {seq!r}: {self.num_free_blocks()} blocks free")
        state.position_offset += num_new
        state.generated_tokens += new
        return ()

    def commit(self, seq: Hashable) -> None:
        """After a forward pass continuous_api.py marks the blocks that it completed."""
        num_complete = self._states[seq].position_offset // self.block_size
        if num_complete > self._num_marked[seq] and seq not in self._keyed:
            self._cache.mark_complete_blocks(self._states[seq], {FULL: num_complete - self._num_marked[seq]})
            self._num_marked[seq] = num_complete

    def fork(self, parent: Hashable, child: Hashable) -> Copies:
        state = self._states[parent]
        self._refuse_known(child)
        source: list[int] = []
        destination: list[int] = []
        if not self._fork(state, child, source, destination):
            raise MemoryError(f"no room for the tail of {parent!r}: {self.num_free_blocks()} blocks free")
        self._states[child] = twin = self._new_state(child, state.initial_tokens.copy(), max_new_tokens=None)
        twin.generated_tokens, twin.position_offset = state.generated_tokens.copy(), state.position_offset
        self._num_marked[child] = self._num_marked[parent]
        if parent in self._keyed:
            self._keyed.add(child)
        return list(zip(source, destination, strict=True))

    def free(self, seq: Hashable) -> None:
        del self._states[seq], self._num_marked[seq]
        self._keyed.discard(seq)
        self._cache.free_blocks(seq)

    def block_table(self, seq: Hashable) -> Sequence[int]:
        self._states[seq]  # KeyError
        table: list[int] = self._blocks.block_table[seq]
        return table

    def num_free_blocks(self) -> int:
        """Of the pool's trees, of sectors that no allocator took yet, and cached ones, which are evicted on demand."""
        pool = self._cache.pool
        return int(pool.count_free_blocks(0) + pool.num_free_sectors + len(self._blocks.ledger.cached_blocks))

    def can_allocate(self, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return -(-num_tokens // self.block_size) <= self.num_free_blocks()

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        return 0 if key else len(self._blocks.match_prefix_blocks(plain(tokens))) * self.block_size

    def _store(self, state: Any, num_new: int) -> bool:
        """``can_store_request_tokens`` checks and takes; the scheduler evicts under pressure and tries again. Here
        only when that is enough, so that a failure changes nothing."""
        if self._cache.can_store_request_tokens(state, num_new):
            return True
        needed = self._blocks.needs_new_blocks(state.request_id, state.position_offset, num_new)
        if needed > self.num_free_blocks():
            return False
        self._cache.evict_cached_blocks()
        return bool(self._cache.can_store_request_tokens(state, num_new))

    def _fork(self, state: Any, child: Hashable, source: list[int], destination: list[int]) -> bool:
        copies = {FULL: (source, destination)}
        if self._cache.prepare_fork_request(state, [child], copies):
            return True
        needed = self._blocks.count_non_shareable_blocks(state.request_id, state.position_offset)
        if needed > self.num_free_blocks():
            return False
        self._cache.evict_cached_blocks()
        return bool(self._cache.prepare_fork_request(state, [child], copies))

    def _refuse_known(self, seq: Hashable) -> None:
        if seq in self._states:
            raise KeyError(f"{seq!r} is allocated already")


def make_cache(num_blocks: int, block_size: int) -> Any:
    import torch
    from transformers import ContinuousBatchingConfig, LlamaConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    head_dim = SECTOR_ALIGNMENT // math.gcd(SECTOR_ALIGNMENT, BYTES_A_DIM * block_size)
    model = LlamaConfig(
        num_hidden_layers=1,
        hidden_size=head_dim,
        intermediate_size=head_dim,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=head_dim,
        vocab_size=8,
    )
    batching = ContinuousBatchingConfig(
        num_blocks=num_blocks,
        page_size=block_size,
        max_batch_tokens=1,
        allow_block_sharing=True,
        max_memory_percent=0.9,
    )
    alone = SimpleNamespace(tp_size=1, are_kv_heads_tp_ed=lambda: False)  # all that is asked of a DistributedHelper
    return PagedAttentionCache(model, batching, torch.device("cpu"), alone, torch.float16)


def plain(tokens: Any) -> list[int]:
    return int32_list(tokens, why="transformers hashes token ids as int32")
