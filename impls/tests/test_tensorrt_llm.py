"""TensorRT-LLM's KVCacheManager behind the contract: bound to the stub of its public names, over a double of it.

The double keeps what the stub and the source beside it promise: a cache is made suspended, resize says no without
changing anything, whole blocks are matched once they are committed.
"""

import inspect
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from kvproof_impls import tensorrt_llm
from kvproof_impls.tensorrt_llm import BLOCK_BYTES, TensorRtLlmAllocator


class Recorded:
    """Signatures of ``tensorrt_llm/runtime/kv_cache_manager_v2/__init__.pyi`` at 0076e9390e1e, without what the
    adapter does not give; nothing runs here."""

    def create_kv_cache(self, reuse_scope=None, input_tokens=None, id=None, **more): ...

    def probe_reuse(self, reuse_scope=None, input_tokens=None): ...

    def get_storage_statistics(self, cache_level=...): ...

    def clear_reusable_blocks(self): ...

    def resize(self, capacity, history_length=None): ...

    def resume(self, cuda_stream=None): ...

    def commit(self, accepted_input_tokens, beam_search_indices=None, is_end=False): ...

    def get_aggregated_page_indices(self, layer_group_id, beam_id=..., valid_only=False): ...

    def close(self): ...


def recorded(method):
    signature = inspect.signature(getattr(Recorded, method.__name__))

    def call(*args, **options):
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        return method(**bound.arguments)

    return call


@dataclass
class BufferConfig:
    role: str
    size: int
    tokens_per_block_override: int | None = None


@dataclass
class AttentionLayerConfig:
    layer_id: int
    buffers: list
    sliding_window_size: int | None = None
    num_sink_tokens: int | None = None


@dataclass
class GpuCacheTierConfig:
    quota: int


@dataclass
class KVCacheManagerConfig:
    tokens_per_block: int
    cache_tiers: list
    layers: list
    max_util_for_resume: float = 0.97
    enable_partial_reuse: bool = True


class ReuseScope(NamedTuple):
    lora_id: int | None = None
    salt: int | None = None


class Cache:
    def __init__(self, manager, scope, blocks, tokens):
        self.manager, self.scope, self.blocks, self.tokens = manager, scope, blocks, tokens
        self.capacity, self.active = len(tokens), False

    @property
    def num_committed_tokens(self):
        return len(self.tokens)

    @recorded
    def resume(self, cuda_stream):
        assert not self.active
        self.active = isinstance(cuda_stream, int)
        return self.active

    @recorded
    def resize(self, capacity, history_length):
        assert self.active
        grown = -(-capacity // self.manager.size) - len(self.blocks)
        if grown > self.manager.available():
            return False
        for _ in range(grown):
            self.blocks.append(self.manager.take())
        self.capacity = capacity
        return True

    @recorded
    def commit(self, accepted_input_tokens, beam_search_indices, is_end):
        self.tokens = self.tokens + accepted_input_tokens
        assert len(self.tokens) <= self.capacity
        for end in range(self.manager.size, len(self.tokens) + 1, self.manager.size):
            self.manager.cached.setdefault((self.scope, *self.tokens[:end]), self.blocks[end // self.manager.size - 1])

    @recorded
    def get_aggregated_page_indices(self, layer_group_id, beam_id, valid_only):
        assert layer_group_id == 0
        yield from self.blocks

    @recorded
    def close(self):
        self.manager.living.remove(self)


class Manager:
    def __init__(self, config):
        (layer,), (tier,) = config.layers, config.cache_tiers
        assert not config.enable_partial_reuse
        self.size, self.total = config.tokens_per_block, tier.quota // sum(one.size for one in layer.buffers)
        self.cached, self.living = {}, []

    def used(self):
        return {block for cache in self.living for block in cache.blocks}

    def available(self):
        return self.total - len(self.used())

    def take(self):
        kept = self.used() | set(self.cached.values())
        free = [block for block in range(self.total) if block not in kept]
        if not free:
            key = next(key for key, block in self.cached.items() if block not in self.used())
            free = [self.cached.pop(key)]
        return free[0]

    def matched(self, scope, tokens):
        ends = range(self.size, len(tokens) + 1, self.size)
        found = [self.cached.get((scope, *tokens[:end])) for end in ends]
        return found[: found.index(None)] if None in found else found

    @recorded
    def create_kv_cache(self, reuse_scope, input_tokens, id, more):
        blocks = self.matched(reuse_scope, input_tokens)
        self.living.append(Cache(self, reuse_scope, blocks, input_tokens[: len(blocks) * self.size]))
        return self.living[-1]

    @recorded
    def probe_reuse(self, reuse_scope, input_tokens):
        return len(self.matched(reuse_scope, input_tokens)) * self.size

    @recorded
    def get_storage_statistics(self, cache_level):
        return [SimpleNamespace(total=self.total, available=self.available())]

    @recorded
    def clear_reusable_blocks(self):
        self.cached.clear()


@pytest.fixture(autouse=True)
def library(monkeypatch):
    configs = (BufferConfig, AttentionLayerConfig, GpuCacheTierConfig, KVCacheManagerConfig, ReuseScope)
    module = SimpleNamespace(KVCacheManager=Manager, **{made.__name__: made for made in configs})
    for package in ("tensorrt_llm", "tensorrt_llm.runtime"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "tensorrt_llm.runtime.kv_cache_manager_v2", module)
    monkeypatch.setattr(tensorrt_llm, "current_stream", lambda: 0)


def test_tables_grow_at_the_boundary_and_return_all_blocks():
    allocator = TensorRtLlmAllocator(5, 4)
    assert (allocator.num_blocks, allocator.pool_blocks, allocator.num_free_blocks()) == (5, 5, 5)
    assert allocator.allocate("a", [1, 2, 3, 4]) == 0
    assert len(allocator.block_table("a")) == 1
    assert allocator.append("a", [5]) == ()
    assert len(set(allocator.block_table("a"))) == 2
    allocator.free("a")
    assert allocator.num_free_blocks() == 5


def test_what_does_not_fit_changes_nothing():
    allocator = TensorRtLlmAllocator(2, 4)
    with pytest.raises(MemoryError, match="no room for 9 tokens: 2 blocks free"):
        allocator.allocate("a", range(9))
    assert [allocator.can_allocate(tokens) for tokens in (8, 9)] == [True, False]
    allocator.allocate("a", range(8))
    with pytest.raises(MemoryError, match="'a': 0 blocks free"):
        allocator.append("a", [9])
    assert len(allocator.block_table("a")) == 2
    allocator.commit("a")
    allocator.free("a")
    with pytest.raises(MemoryError, match="2 blocks free"):
        allocator.allocate("b", range(9))  # whose first two blocks are found
    assert allocator.num_free_blocks() == 2


def test_committed_blocks_are_found_under_their_own_key_and_never_the_last_token():
    allocator = TensorRtLlmAllocator(8, 4)
    allocator.allocate("a", range(8), ("tenant", 1))
    assert allocator.cached_prefix(range(9), ("tenant", 1)) == 0
    for _ in range(2):
        allocator.commit("a")
    assert allocator.cached_prefix(range(9), ("tenant", 1)) == 8
    assert allocator.cached_prefix(range(8), ("tenant", 1)) == 4
    assert allocator.cached_prefix(range(9), ("tenant", 2)) == allocator.cached_prefix(range(9)) == 0
    assert allocator.allocate("b", range(8), ("tenant", 1)) == 4
    assert allocator.block_table("b")[0] == allocator.block_table("a")[0]
    allocator.reset_prefix_cache()
    assert allocator.cached_prefix(range(9), ("tenant", 1)) == 0


def test_errors_are_those_of_the_contract():
    allocator = TensorRtLlmAllocator(4, 4)
    allocator.allocate("a", [1])
    with pytest.raises(KeyError, match="allocated already"):
        allocator.allocate("a", [1])
    for call in (allocator.free, allocator.block_table, allocator.commit, lambda seq: allocator.append(seq, [1])):
        with pytest.raises(KeyError):
            call("b")
    with pytest.raises(ValueError, match="can't allocate -1"):
        allocator.can_allocate(-1)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 1), (4, 12)])
def test_sizes_that_it_has_not_are_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match="a power of two from 2"):
        TensorRtLlmAllocator(num_blocks, block_size)


def test_a_pool_that_came_out_smaller_is_refused(monkeypatch):
    layer = AttentionLayerConfig(0, [BufferConfig("key", BLOCK_BYTES)])
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(BLOCK_BYTES)], [layer], enable_partial_reuse=False)
    monkeypatch.setattr(tensorrt_llm, "manager_of", lambda num_blocks, block_size: Manager(config))
    with pytest.raises(ValueError, match="asked for 2 blocks of 2,097,152 bytes, got 1"):
        TensorRtLlmAllocator(2, 4)
