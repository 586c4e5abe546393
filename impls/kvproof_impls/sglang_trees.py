"""SGLang's allocators of slots, its prefix trees, and what they ask of a request. Read in SGLang 0.5.23, mem_cache/."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof_impls.sglang_library import parts_of

CALLS = {
    "CacheInitParams": "cache_init_params",
    "ComponentType": "unified_cache.component_type",
    "EvictParams": "base_prefix_cache",
    "MatchPrefixParams": "base_prefix_cache",
    "PagedTokenToKVPoolAllocator": "allocator.paged",
    "RadixCache": "radix_cache",
    "RadixKey": "radix_cache",
    "ReqToTokenPool": "memory_pool",
    "TokenToKVPoolAllocator": "allocator.token",
    "UnifiedRadixCache": "unified_radix_cache",
}
"""Name to its module below ``sglang.srt.mem_cache``."""


@cache
def library() -> SimpleNamespace:
    return parts_of("sglang.srt.mem_cache", CALLS)


def new_slots(num_slots: int, block_size: int) -> Any:
    """With pages of one token the paged allocator takes none in a step: an engine has another for them."""
    if block_size == 1:
        return library().TokenToKVPoolAllocator(num_slots, None, "cpu", None, need_sort=False)
    return library().PagedTokenToKVPoolAllocator(num_slots, block_size, None, "cpu", None, need_sort=False)


def new_tree(core: str | None, rows: Any, slots: Any, block_size: int) -> Any:
    """A UnifiedRadixCache with that core, "rust" or "python"; a RadixCache without."""
    lib, pools = library(), (False, rows, slots, block_size)
    if core is None:
        return lib.RadixCache(lib.CacheInitParams(*pools))
    parts = (lib.ComponentType.FULL,)
    params = lib.CacheInitParams(*pools, tree_components=parts, tree_core_backend=core)
    tree = lib.UnifiedRadixCache(params)
    if tree._tree_core_backend != core:
        raise RuntimeError(f"SGLang has no {core} core here, and would use its {tree._tree_core_backend} one")
    return tree


def packed(ids: npt.NDArray[np.int64]) -> array[int]:
    """The tree's keys are arrays of the standard library, which compare a stretch in one go."""
    return array("q", ids.tobytes())


def new_request(prompt: array[int], key: tuple[Hashable, ...]) -> SimpleNamespace:
    """What the trees' ``checkpoint`` asks of a Req."""
    kv = SimpleNamespace(req_pool_idx=0, cache_protected_len=0, cache_inserted_len=0, swa_evict_floor=0)
    fields = {"kv": kv, "extra_key": repr(key) if key else None, "cache_salt": None, "priority": 0}
    ids = {"full_untruncated_fill_ids": prompt, "origin_input_ids": prompt, "rid": "", "kv_rotation_base": None}
    state = {"lock": None, "last_node": None, "session": None, "session_id": None, "finished": lambda: False}
    return SimpleNamespace(**fields, **ids, **state)
