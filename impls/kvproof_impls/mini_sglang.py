"""mini-sglang's CacheManager with its radix tree, from a checkout on the import path: it is not on PyPI.

Read at commit 20fcd7f (2026-03-13), python/minisgl/: scheduler/cache.py, prefill.py and scheduler.py, and
kvcache/radix_cache.py. Needs torch, transformers, msgpack, pyzmq and apache-tvm-ffi, which compiles its comparison of
keys. Tables are by token; a block is a page. The package of the scheduler imports the whole engine, and is passed by.

All policy: the prompt is published after its prefill, output only when the request ends; whole leaves are evicted; the
last token of a prompt is never matched. Not here, since it has none: fork, reserve, truncate, swap, a reset of the
cache, keys in the tree. Requests with a key are kept out of the prefix cache.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof_impls.checkout import module_below, require_call
from kvproof_impls.token_lists import int32_list

Copies = Sequence[tuple[int, int]]

COMMIT = "mini-sglang 20fcd7f"
MOST_SEQS = 512
LONGEST = 16_384
"""Tokens of a sequence. The engine sizes its table of tokens by the two; a longer sequence finds no room here."""


class MiniSglangAllocator:
    """Contract ``BlockAllocator``. Token ids beyond int32 are refused: the engine's are vocabulary indices.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size = block_size
        self._lib = lib = library()
        self._longest = min(num_blocks, max(1, LONGEST // block_size)) * block_size
        lib.core._GLOBAL_CTX = lib.core.Context(block_size)  # the tree reads its page size from there
        table = lib.torch.zeros(MOST_SEQS, self._longest, dtype=lib.torch.int32)
        self._rows = lib.TableManager(MOST_SEQS, table)
        self._cache = lib.CacheManager(num_blocks, block_size, table, "radix")
        self._requests: dict[Hashable, Any] = {}
        self._committed: dict[Hashable, int] = {}
        self._keyed: set[Hashable] = set()

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """As ``PrefillAdder`` does: match all but the last token, lock the match, take a row, extend."""
        if seq in self._requests:
            raise KeyError(f"{seq!r} is allocated already")
        ids = self._ids(tokens)
        handle = self._match(ids, key)
        self._cache.lock(handle)
        try:
            self._require_row()
            self._require_room(handle.cached_len, len(ids))
        except MemoryError:
            self._cache.unlock(handle)
            raise
        row = self._rows.allocate()
        if handle.cached_len:
            self._rows.page_table[row, : handle.cached_len] = handle.get_matched_indices()
        request = new_request(ids, row, handle)
        self._cache.allocate_paged([request])
        self._requests[seq], self._committed[seq] = request, 0
        if key:
            self._keyed.add(seq)
        return int(handle.cached_len)

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        """The engine appends one token a step, or a chunk of a prefill."""
        request, ids = self._requests[seq], self._ids(tokens)
        length = len(request.input_ids)
        self._require_room(length, length + len(ids))
        request.append_host(ids)
        request.cached_len, request.device_len = length, length + len(ids)
        self._cache.allocate_paged([request])
        return ()

    def commit(self, seq: Hashable) -> None:
        """All is written. After the prefill complete pages go into the tree; later ones when the request ends."""
        request = self._requests[seq]
        request.cached_len = len(request.input_ids)
        if not self._committed[seq] and request.cached_len and seq not in self._keyed:
            self._cache.cache_req(request, finished=False)
        self._committed[seq] = request.cached_len

    def free(self, seq: Hashable) -> None:
        """As ``Scheduler._free_req_resources``, once what is not written yet is given back: the engine has none."""
        request, committed = self._requests.pop(seq), self._committed.pop(seq)
        kept = (
            request.cache_handle.cached_len if seq in self._keyed else max(committed, request.cache_handle.cached_len)
        )
        self._keyed.discard(seq)
        size, row = self.block_size, self._rows.page_table[request.table_idx]
        unwritten = slice(-(-kept // size) * size, -(-len(request.input_ids) // size) * size)
        self._cache._free(row[unwritten])
        request.cached_len = kept
        self._rows.free(request.table_idx)
        self._cache.cache_req(request, finished=True)

    def block_table(self, seq: Hashable) -> Sequence[int]:
        request, size = self._requests[seq], self.block_size
        pages = self._rows.page_table[request.table_idx, : len(request.input_ids) : size] // size
        return pages.tolist()  # type: ignore[no-any-return]

    def num_free_blocks(self) -> int:
        return int(self._cache.available_size) // self.block_size

    def can_allocate(self, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return num_tokens <= self._longest and -(-num_tokens // self.block_size) <= self.num_free_blocks()

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        return int(self._match(self._ids(tokens), key).cached_len)

    def _match(self, ids: Any, key: tuple[Hashable, ...]) -> Any:
        if key or not len(ids):
            return self._cache.prefix_cache.match_prefix(ids[:0]).cuda_handle
        return self._cache.match_req(SimpleNamespace(input_ids=ids, input_len=len(ids))).cuda_handle

    def _require_room(self, length: int, end: int) -> None:
        grown = -(-end // self.block_size) - -(-length // self.block_size)
        if end > self._longest or grown > self.num_free_blocks():
            raise MemoryError(f"no room for {grown} blocks: {self.num_free_blocks()} of {self.num_blocks} free")

    def _require_row(self) -> None:
        if not self._rows.available_size:
            raise MemoryError(f"all {MOST_SEQS} rows of the table are taken")

    def _ids(self, tokens: Sequence[int]) -> Any:
        ids = int32_list(tokens, why="token ids past int32 are no vocabulary indices")
        return self._lib.torch.tensor(ids, dtype=self._lib.torch.int32)


@cache
def library() -> SimpleNamespace:
    """What is used of it, held to the calls of the commit that this was written for."""
    import torch

    manager, table = (module_below("minisgl.scheduler", name, "mini-sglang") for name in ("cache", "table"))
    require_call(manager.CacheManager.__init__, ("self", "num_pages", "page_size", "page_table", "type"), COMMIT)
    require_call(manager.CacheManager.allocate_paged, ("self", "reqs"), COMMIT)
    require_call(manager.CacheManager.cache_req, ("self", "req", "finished"), COMMIT)
    if not torch.cuda.is_available():
        vars(manager)["torch"] = without_pinning(torch)
    core = importlib.import_module("minisgl.core")
    return SimpleNamespace(torch=torch, core=core, CacheManager=manager.CacheManager, TableManager=table.TableManager)


def without_pinning(torch: Any) -> SimpleNamespace:
    """torch for the manager's module, which stages its indices in pinned memory: there is none without a GPU."""

    def empty(*size: int, pin_memory: bool = False, **options: Any) -> Any:
        return torch.empty(*size, **options)

    return SimpleNamespace(**{**vars(torch), "empty": empty})


def new_request(ids: Any, row: int, handle: Any) -> Any:
    """A request has a token to compute, which an empty prompt loses again."""
    last = {"output_len": 0, "uid": 0, "sampling_params": None, "cache_handle": handle}
    prompt = ids if len(ids) else ids.new_zeros(1)
    request = library().core.Req(input_ids=prompt, table_idx=row, cached_len=handle.cached_len, **last)
    request.input_ids, request.device_len = ids, len(ids)
    return request
