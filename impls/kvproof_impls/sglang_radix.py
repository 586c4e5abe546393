"""SGLang's paged slot allocator with its prefix trees, driven through the library's own request calls.

Read in SGLang 0.5.23, srt/mem_cache/: allocator/paged.py, memory_pool.py, common.py, and the trees: an engine builds a
UnifiedRadixCache (registry.py), whose core is written in Rust and once more in Python; RadixCache is the one before it.
Tables are by token there; a block is a page, and page 0 takes the writes of padding. The tree owns what it keeps:
``checkpoint`` hands complete pages over, frees the duplicates that it met, and locks the path, so that nothing is freed
twice.

All policy: the prompt is published after its prefill, output only when the request ends; whole leaves are evicted; the
caller evicts before it allocates. A step allocates for the whole batch in one call. The page table of a step is read
from the table of tokens, as the FlashAttention back end does (layers/attention). Not here, since it has none: fork,
reserve, truncate, swap, and a reset under live requests. A key becomes the tree's ``extra_key``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from kvproof_impls.contract import PagedBatch
from kvproof_impls.sglang_trees import library, new_request, new_slots, new_tree, packed

Copies = Sequence[tuple[int, int]]

MOST_SEQS = 512
LONGEST = 16_384
"""Tokens of a sequence. The engine sizes its table of tokens by the two; a longer sequence finds no room here."""


class SglangAllocator:
    """Contract ``BlockAllocator``.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    core: str | None = "rust"
    """Of the UnifiedRadixCache, the default first; None: a RadixCache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks, self.pool_blocks, self.block_size = num_blocks, num_blocks + 1, block_size
        self._lib, num_slots = library(), num_blocks * block_size
        torch = self._lib.torch
        longest = self._longest = min(num_slots, LONGEST)
        self._rows = self._lib.ReqToTokenPool(MOST_SEQS, longest, "cpu", False)
        self._slots = new_slots(num_slots, block_size)
        self._tree = new_tree(self.core, self._rows, self._slots, block_size)
        self._ids = torch.from_numpy(np.zeros((MOST_SEQS + 1, longest), np.int64))  # the engine keeps them in lists
        self._lengths, self._committed = (torch.zeros(MOST_SEQS + 1, dtype=torch.int64) for _ in range(2))
        self._requests: dict[Hashable, Any] = {}
        self._batch: tuple[Sequence[Hashable], Any] = ((), None)  # of the last step, and its rows

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """As the scheduler does: match all but the last token, lock the match, evict, extend."""
        if seq in self._requests:
            raise KeyError(f"{seq!r} is allocated already")
        torch, ids = self._lib.torch, np.array(tokens, np.int64)
        prompt = packed(ids)
        request = new_request(prompt, key)
        request.last_node = self._match(request).last_device_node
        request.lock = self._tree.lock(request.last_node)
        prefix = self._tree.path_device_indices(request.last_node)
        row = request.kv.req_pool_idx = self._rows.alloc_rows(1)[0]
        self._lengths[row] = request.kv.cache_protected_len = len(prefix)
        self._committed[row] = 0
        self._rows.write((row, slice(0, len(prefix))), prefix.to(torch.int32))
        try:
            self._extend(row, len(prefix), torch.from_numpy(ids[len(prefix) :]))
        except MemoryError:
            self._rows.free_rows([row])
            self._tree.unlock(request.lock)
            raise
        self._ids[row, : len(prefix)] = torch.from_numpy(ids[: len(prefix)])
        self._requests[seq], self._batch = request, ((), None)
        return len(prefix)

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """As a chunk of a prefill."""
        row = self._requests[seq].kv.req_pool_idx
        self._extend(row, int(self._lengths[row]), self._lib.torch.from_numpy(np.array(tokens, np.int64)))
        return ()

    def append_step(self, seqs: Sequence[Hashable], tokens: Sequence[int]) -> PagedBatch:
        """``alloc_decode`` for the batch; its rows are kept while the batch stays the same tuple."""
        torch, size = self._lib.torch, self.block_size
        if len(seqs) != len(tokens):
            raise ValueError(f"append_step takes one token a sequence: {len(seqs)} sequences, {len(tokens)} tokens")
        rows = self._rows_of(seqs)
        before = self._lengths[rows]
        after = before + 1
        lengths = tuple(after.tolist())
        self._require_row(max(lengths, default=0))
        self._make_room(int((before % size == 0).sum()))
        if size == 1:
            slots = self._slots.alloc(len(seqs))
        else:
            last = self._rows.req_to_token[rows, before - 1].to(torch.int64)
            slots = self._slots.alloc_decode(after, after, last)
        self._rows.write((rows, before), slots.to(torch.int32))
        self._ids[rows, before] = torch.as_tensor(tokens, dtype=torch.int64)
        self._lengths[rows] = after
        pages = self._rows.req_to_token[:, : max(lengths, default=0) : size][rows] // size
        starts = torch.arange(len(seqs) + 1, dtype=torch.int32)
        return PagedBatch(pages, after.to(torch.int32), starts, slots, lengths, (1,) * len(seqs))

    def commit(self, seq: Hashable) -> None:
        """All is written. After the prefill complete pages go into the tree; later ones when the request ends."""
        request = self._requests[seq]
        row = request.kv.req_pool_idx
        if not self._committed[row]:
            request.origin_input_ids = packed(self._ids[row, : self._lengths[row]].numpy())
            self._checkpoint(request, int(self._lengths[row]))
        self._committed[row] = self._lengths[row]

    def commit_step(self, seqs: Sequence[Hashable]) -> None:
        rows = self._rows_of(seqs)
        for seq in [seq for seq, done in zip(seqs, self._committed[rows].tolist(), strict=True) if not done]:
            self.commit(seq)
        self._committed[rows] = self._lengths[rows]

    def free(self, seq: Hashable) -> None:
        """As ``release_kv_cache``: the tree keeps what it can key, the rest goes back, the lock is opened."""
        request = self._requests.pop(seq)
        row, self._batch = request.kv.req_pool_idx, ((), None)
        length = int(self._lengths[row])
        self._checkpoint(request, int(self._committed[row]))
        kept = request.kv.cache_protected_len
        self._slots.free_segment(self._rows.req_to_token[row, kept:length].to(self._lib.torch.int64), start_pos=kept)
        self._tree.unlock(request.lock)
        self._rows.free_rows([row])

    def block_table(self, seq: Hashable) -> Sequence[int]:
        row, size = self._requests[seq].kv.req_pool_idx, self.block_size
        pages = self._rows.req_to_token[row, : self._lengths[row] : size] // size
        return pages.tolist()  # type: ignore[no-any-return]

    def num_free_blocks(self) -> int:
        return int(self._slots.available_size() + self._tree.evictable_size()) // self.block_size

    def can_allocate(self, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return num_tokens <= self._longest and -(-num_tokens // self.block_size) <= self.num_free_blocks()

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        request = new_request(packed(np.array(tokens, np.int64)), key)
        return int(self._match(request).device_prefix_len)

    def _match(self, request: Any) -> Any:
        """A token is left to compute, as the scheduler does."""
        ids = request.full_untruncated_fill_ids
        key = self._lib.RadixKey(ids, request.extra_key, limit=max(0, len(ids) - 1))
        return self._tree.match_prefix(self._lib.MatchPrefixParams(key=key))

    def _checkpoint(self, request: Any, num_tokens: int) -> None:
        if num_tokens >= self.block_size:
            row = request.kv.req_pool_idx
            request.full_untruncated_fill_ids = packed(self._ids[row, :num_tokens].numpy())
            self._tree.checkpoint(request, up_to=num_tokens)

    def _extend(self, row: int, length: int, tokens: Any) -> None:
        torch, size, end = self._lib.torch, self.block_size, length + len(tokens)
        self._require_row(end)
        self._make_room(-(-end // size) - -(-length // size))
        if not len(tokens):
            return
        if size == 1:
            slots = self._slots.alloc(len(tokens))
        else:
            prefix, total = torch.tensor([length]), torch.tensor([end])
            last = self._rows.req_to_token[row, length - 1 : length].to(torch.int64) if length else torch.tensor([-1])
            slots = self._slots.alloc_extend(prefix, prefix, total, total, last, len(tokens))
        self._rows.write((row, slice(length, end)), slots.to(torch.int32))
        self._ids[row, length:end] = tokens
        self._lengths[row] = end

    def _require_row(self, num_tokens: int) -> None:
        if num_tokens > self._longest:
            raise MemoryError(f"{num_tokens} tokens: a row of the table has {self._longest}")

    def _make_room(self, num_pages: int) -> None:
        missing = num_pages * self.block_size - self._slots.available_size()
        if missing > self._tree.evictable_size():
            raise MemoryError(f"no room for {num_pages} blocks: {self.num_free_blocks()} of {self.num_blocks} free")
        if missing > 0:
            self._tree.evict(self._lib.EvictParams(num_tokens=missing))

    def _rows_of(self, seqs: Sequence[Hashable]) -> Any:
        if seqs is not self._batch[0] or not isinstance(seqs, tuple):
            if len(set(seqs)) != len(seqs):
                raise KeyError(f"append_step: a sequence more than once in {list(seqs)}")
            rows = [self._requests[seq].kv.req_pool_idx for seq in seqs]
            self._batch = (seqs, self._lib.torch.tensor(rows, dtype=self._lib.torch.int64))
        return self._batch[1]


class PythonCoreAllocator(SglangAllocator):
    """The tree that serves where the compiled one can't."""

    core = "python"


class RadixCacheAllocator(SglangAllocator):
    """The tree of earlier releases."""

    core = None
