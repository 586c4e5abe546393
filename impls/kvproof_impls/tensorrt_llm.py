"""TensorRT-LLM's KVCacheManager (version 2), whose pool is CUDA memory: nothing of it runs without a device.

Written against the stub of its public names, ``tensorrt_llm/runtime/kv_cache_manager_v2/__init__.pyi`` at 0076e9390e1e,
``_core/_kv_cache.py`` and ``docs/source/features/kvcache.md``. PyPI has a package that fetches the wheel from NVIDIA's
own index.

Policy, not a defect: cached blocks leave by priority and least recent use; a block whose tokens another has cached
already stays its sequence's own, and is not found. Not here: fork and copy-on-write (none), truncate (what is committed
can't be taken back), swapping (its tiers move pages by themselves). Prefixes are matched by whole blocks only: a match
inside one copies on the device, which the contract does not see.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.token_lists import int32_list

Copies = Sequence[tuple[int, int]]

BLOCK_BYTES = 2 * 2**20
"""Of a block's keys and values: the smallest piece of memory that CUDA maps, so that a pool holds what is asked for."""
ONLY_GROUP = 0
"""One layer makes one group of layers, with one table a sequence."""


class TensorRtLlmAllocator:
    """Contract ``BlockAllocator``. Ids are the numbers of its slots; the last token of a prompt is never matched, as
    its executor has to compute one.

    Raises:
        ValueError: ``num_blocks`` below 1, ``block_size`` no power of two above 1, or a pool that came out smaller.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 2 or block_size & (block_size - 1):
            raise ValueError(f"num_blocks ({num_blocks}) from 1, block_size ({block_size}) a power of two from 2")
        self.block_size = block_size
        self._manager = manager_of(num_blocks, block_size)
        self.num_blocks = self.pool_blocks = int(self._statistics().total)
        if self.num_blocks < num_blocks:
            raise ValueError(f"asked for {num_blocks} blocks of {BLOCK_BYTES:,} bytes, got {self.num_blocks}")
        self._caches: dict[Hashable, Any] = {}
        self._tokens: dict[Hashable, list[int]] = {}
        self._salts: dict[tuple[Hashable, ...], int] = {}

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        if seq in self._caches:
            raise KeyError(f"{seq!r} is allocated already")
        prompt = plain(tokens)
        cache = self._manager.create_kv_cache(reuse_scope=self._scope(key), input_tokens=prompt[:-1])
        num_cached = int(cache.num_committed_tokens)
        if not (cache.resume(current_stream()) and cache.resize(len(prompt))):
            cache.close()
            raise MemoryError(f"no room for {len(prompt)} tokens: {self.num_free_blocks()} blocks free")
        self._caches[seq], self._tokens[seq] = cache, prompt
        return num_cached

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        cache, known, new = self._caches[seq], self._tokens[seq], plain(tokens)
        if not cache.resize(len(known) + len(new)):
            raise MemoryError(f"no room for {len(new)} tokens of {seq!r}: {self.num_free_blocks()} blocks free")
        known.extend(new)
        return ()

    def commit(self, seq: Hashable) -> None:
        cache = self._caches[seq]
        cache.commit(self._tokens[seq][cache.num_committed_tokens :])

    def free(self, seq: Hashable) -> None:
        self._caches.pop(seq).close()
        del self._tokens[seq]

    def block_table(self, seq: Hashable) -> Sequence[int]:
        return list(self._caches[seq].get_aggregated_page_indices(ONLY_GROUP))

    def num_free_blocks(self) -> int:
        return int(self._statistics().available)

    def can_allocate(self, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return -(-num_tokens // self.block_size) <= self.num_free_blocks()

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        return int(self._manager.probe_reuse(reuse_scope=self._scope(key), input_tokens=plain(tokens)[:-1]))

    def reset_prefix_cache(self) -> None:
        self._manager.clear_reusable_blocks()

    def _statistics(self) -> Any:
        (only_pool,) = self._manager.get_storage_statistics()
        return only_pool

    def _scope(self, key: tuple[Hashable, ...]) -> Any:
        """Its salts are numbers: each key gets one of its own."""
        from tensorrt_llm.runtime.kv_cache_manager_v2 import ReuseScope

        return ReuseScope(salt=self._salts.setdefault(key, len(self._salts) + 1) if key else None)


def manager_of(num_blocks: int, block_size: int) -> Any:
    """One layer, whose keys and values fill a block, in device memory alone."""
    from tensorrt_llm.runtime.kv_cache_manager_v2 import (
        AttentionLayerConfig,
        BufferConfig,
        GpuCacheTierConfig,
        KVCacheManager,
        KVCacheManagerConfig,
    )

    buffers = [BufferConfig(role=role, size=BLOCK_BYTES // 2) for role in ("key", "value")]
    config = KVCacheManagerConfig(
        tokens_per_block=block_size,
        cache_tiers=[GpuCacheTierConfig(quota=num_blocks * BLOCK_BYTES)],
        layers=[AttentionLayerConfig(layer_id=0, buffers=buffers)],
        max_util_for_resume=1.0,
        enable_partial_reuse=False,
    )
    return KVCacheManager(config)


def plain(tokens: Any) -> list[int]:
    return list(int32_list(tokens, why="token ids past int32 are no vocabulary indices"))


def current_stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)
