"""vLLM's block manager behind the contract: which calls are made, with what, and what a refusal leaves behind."""

import importlib.util
import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from kvproof_impls import vllm_v1
from kvproof_impls.vllm_v1 import VllmAllocator


@pytest.fixture
def pool(recorded_allocators, monkeypatch):
    """Four blocks of four tokens over the recorded manager."""
    library = SimpleNamespace(
        torch=SimpleNamespace(bfloat16="bfloat16"),
        KVCacheManager=recorded_allocators.KVCacheManager,
        Request=recorded_allocators.Request,
        FullAttentionSpec=lambda **options: options,
        KVCacheConfig=lambda num_blocks, kv_cache_tensors, kv_cache_groups: num_blocks,
        KVCacheGroupSpec=lambda names, spec: spec,
        get_request_block_hasher=lambda size, algorithm: (size, algorithm),
        SamplingParams=lambda max_tokens: max_tokens,
        sha256="sha256",
    )
    monkeypatch.setattr(vllm_v1, "library", lambda: library)
    return VllmAllocator(4, 4)


def calls(pool):
    return pool._manager.calls


def test_the_null_block_is_one_that_nobody_owns(pool):
    assert (pool._manager.config, pool.num_blocks, pool.pool_blocks) == (5, 4, 5)


def test_an_admission_takes_what_is_not_cached_and_publishes_nothing_yet(pool):
    pool._manager.hit = 4
    assert pool.allocate("s", np.arange(6, dtype=np.int32)) == 4
    assert calls(pool) == [(2, 4, "found", True)]


def test_complete_blocks_are_published_by_commit_and_once(pool):
    pool.allocate("s", [1, 2, 3])
    pool.commit("s")
    pool.append("s", [4])
    for _ in range(2):
        pool.commit("s")
    assert [call for call in calls(pool) if call[0] == "cache"] == [("cache", 4)]


def test_a_refused_admission_leaves_no_sequence(pool):
    pool._manager.room = False
    with pytest.raises(MemoryError, match="7 of 4 blocks free"):
        pool.allocate("s", [1])
    with pytest.raises(KeyError):
        pool.free("s")


def test_a_refused_append_leaves_the_tokens_as_they_were(pool):
    pool.allocate("s", [1, 2])
    pool._manager.room = False
    with pytest.raises(MemoryError):
        pool.append("s", [3])
    assert (pool._requests["s"].tokens, pool._requests["s"].num_computed_tokens) == ([1, 2], 2)


def test_nothing_is_asked_for_nothing(pool):
    pool.allocate("s", [])
    pool.append("s", [])
    assert calls(pool) == []
    assert pool.cached_prefix([]) == 0


def test_keys_that_look_alike_give_different_salts(pool):
    keys = [(), ("1",), (1,), (None,), ("a", "b"), (("a", "b"),)]
    for key in keys:
        pool.allocate(key, [1], key)
    assert len({pool._requests[key].cache_salt for key in keys}) == len(keys)
    assert pool._requests[()].cache_salt is None


def test_a_sequence_is_admitted_once_and_freed_once(pool):
    pool.allocate("s", [1])
    with pytest.raises(KeyError):
        pool.allocate("s", [1])
    assert list(pool.block_table("s")) == [3, 1]
    pool.free("s")
    for call in (pool.free, pool.block_table, pool.commit):
        with pytest.raises(KeyError):
            call("s")


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_a_pool_of_an_impossible_shape_is_refused(shape):
    with pytest.raises(ValueError, match="at least 1"):
        VllmAllocator(*shape)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
@pytest.mark.parametrize("name", ["__init__", "get_computed_blocks", "allocate_slots", "cache_blocks", "free"])
def test_the_installed_library_takes_what_was_recorded(recorded_allocators, name):
    recorded = getattr(recorded_allocators.KVCacheManager, name)
    installed = getattr(vllm_v1.library().KVCacheManager, name)
    assert list(inspect.signature(recorded).parameters) == list(inspect.signature(installed).parameters)
