"""transformers' paged cache behind the contract: which calls are made, with what, and what a refusal leaves behind."""

import importlib.util
import inspect
import sys
from types import ModuleType

import pytest

from kvproof_impls import transformers_cache
from kvproof_impls.transformers_cache import FULL, TransformersAllocator

REQUESTS = "transformers.generation.continuous_batching.requests"


@pytest.fixture
def pool(recorded_allocators, monkeypatch):
    """Four blocks of four tokens over the recorded cache."""
    for name in ("transformers", "transformers.generation", REQUESTS.rpartition(".")[0], REQUESTS):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[REQUESTS].RequestState = recorded_allocators.RequestState
    monkeypatch.setattr(transformers_cache, "make_cache", recorded_allocators.PagedAttentionCache)
    return TransformersAllocator(4, 4)


def test_two_sectors_of_the_pool_are_nobodys(pool):
    assert (pool.num_blocks, pool.pool_blocks) == (4, 6)


def test_an_admission_stores_what_was_not_matched(pool):
    pool._cache.hit = 4
    assert pool.allocate("s", [1] * 6) == 4
    assert pool._cache.free == 3  # the matched block was not taken from the free ones
    assert pool._states["s"].position_offset == 6


def test_only_blocks_that_became_complete_are_marked(pool):
    pool._cache.hit = 4
    pool.allocate("s", [1] * 7)
    pool.commit("s")
    pool.append("s", [2])
    for _ in range(2):
        pool.commit("s")
    assert [call for call in pool._cache.calls if call[0] == "mark"] == [("mark", {FULL: 1})]
    assert pool._states["s"].generated_tokens == [2]


def test_cached_blocks_are_evicted_only_when_that_is_enough(pool):
    pool._cache.free, pool._cache.ledger.cached_blocks = 1, {8: None}
    with pytest.raises(MemoryError):
        pool.allocate("large", [1] * 12)
    assert "evict" not in pool._cache.calls
    pool.allocate("fits", [1] * 8)
    assert pool._cache.calls.count("evict") == 1


def test_a_refused_admission_gives_the_match_back_and_leaves_no_sequence(pool):
    pool._cache.hit, pool._cache.free = 4, 0
    with pytest.raises(MemoryError):
        pool.allocate("s", [1] * 6)
    assert pool._cache.calls[-1] == ("free", "s")
    with pytest.raises(KeyError):
        pool.append("s", [1])


def test_a_refused_append_leaves_the_tokens_as_they_were(pool):
    pool.allocate("s", [1] * 4)
    pool._cache.free = 0
    with pytest.raises(MemoryError):
        pool.append("s", [2])
    assert (pool._states["s"].generated_tokens, pool._states["s"].position_offset) == ([], 4)


def test_a_request_with_a_key_is_kept_out_of_the_prefix_cache(pool):
    pool._cache.hit = 4
    assert pool.allocate("s", [1] * 8, ("adapter",)) == 0
    pool.commit("s")
    assert pool._cache.calls == []
    assert pool.cached_prefix([1] * 8, ("adapter",)) == 0
    assert pool.cached_prefix([1] * 8) == 4


def test_a_fork_orders_the_copy_of_the_tail_and_knows_what_its_parent_had(pool):
    pool.allocate("a", [1] * 5)
    assert pool.fork("a", "b") == [(4, 9)]
    pool.append("b", [7])
    assert (pool._states["b"].generated_tokens, pool._states["a"].generated_tokens) == ([7], [])
    pool._cache.free = 0
    with pytest.raises(MemoryError, match="tail of 'a'"):
        pool.fork("a", "c")
    with pytest.raises(KeyError):
        pool.fork("a", "b")


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
def test_tokens_past_int32_are_refused(pool, token):
    with pytest.raises(ValueError, match="int32"):
        pool.allocate("s", [token])


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed here")
@pytest.mark.parametrize(
    "name",
    ["search_prefix_match", "can_store_request_tokens", "mark_complete_blocks", "free_blocks", "prepare_fork_request"],
)
def test_the_installed_library_takes_what_was_recorded(recorded_allocators, name):
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    recorded = getattr(recorded_allocators.PagedAttentionCache, name)
    assert list(inspect.signature(recorded).parameters) == list(
        inspect.signature(getattr(PagedAttentionCache, name)).parameters
    )
