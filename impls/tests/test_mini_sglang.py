"""mini-sglang's cache manager behind the contract, over recorded signatures and the plainest paging."""

from types import SimpleNamespace

import pytest
import torch

from kvproof_impls import mini_sglang
from kvproof_impls.mini_sglang import MiniSglangAllocator, without_pinning


class Handle:
    def __init__(self, cached_len=0, slots=()):
        self.cached_len, self.slots = cached_len, slots

    def get_matched_indices(self):
        return torch.tensor(self.slots, dtype=torch.int32)


class Req:
    """minisgl.core"""

    def __init__(self, input_ids, table_idx, cached_len, output_len, uid, sampling_params, cache_handle):
        assert 0 <= cached_len < len(input_ids)
        self.input_ids, self.table_idx, self.cached_len, self.cache_handle = (
            input_ids,
            table_idx,
            cached_len,
            cache_handle,
        )
        self.device_len = len(input_ids)

    def append_host(self, next_token):
        self.input_ids = torch.cat([self.input_ids, next_token])


class TableManager:
    """minisgl.scheduler.table"""

    def __init__(self, max_running_reqs, page_table):
        self.page_table, self.rows = page_table, list(range(max_running_reqs))

    @property
    def available_size(self):
        return len(self.rows)

    def allocate(self):
        return self.rows.pop()

    def free(self, slot):
        self.rows.append(slot)


class CacheManager:
    """minisgl.scheduler.cache; pages from a list, one after the other, and a tree that remembers what it was told."""

    def __init__(self, num_pages, page_size, page_table, type):
        assert type == "radix"
        self.pages, self.page, self.table = [i * page_size for i in range(num_pages)], page_size, page_table
        self.calls, self.handle = [], Handle()
        self.prefix_cache = SimpleNamespace(match_prefix=lambda ids: SimpleNamespace(cuda_handle=Handle()))

    @property
    def available_size(self):
        return len(self.pages) * self.page

    def match_req(self, req):
        self.calls.append(("match", req.input_len))
        return SimpleNamespace(cuda_handle=self.handle)

    def lock(self, handle):
        self.calls.append("lock")

    def unlock(self, handle):
        self.calls.append("unlock")

    def allocate_paged(self, reqs):
        for req in reqs:
            for page in range(-(-req.cached_len // self.page), -(-req.device_len // self.page)):
                first, slots = self.pages.pop(0), slice(page * self.page, (page + 1) * self.page)
                self.table[req.table_idx, slots] = torch.arange(first, first + self.page, dtype=torch.int32)

    def cache_req(self, req, *, finished):
        self.calls.append(("cache", req.input_ids[: req.cached_len].tolist(), finished))
        if finished:
            self._free(self.table[req.table_idx, : req.cached_len])

    def _free(self, indices):
        self.pages += indices[:: self.page].tolist()


@pytest.fixture
def pool(monkeypatch):
    """Eight blocks of four tokens."""
    core = SimpleNamespace(Req=Req, Context=lambda page_size: page_size)
    parts = SimpleNamespace(torch=torch, core=core, CacheManager=CacheManager, TableManager=TableManager)
    monkeypatch.setattr(mini_sglang, "library", lambda: parts)
    return MiniSglangAllocator(8, 4)


def test_the_tree_reads_the_page_size_of_the_pool_that_is_made(pool):
    assert mini_sglang.library().core._GLOBAL_CTX == 4


def test_a_sequence_grows_by_a_block_at_each_boundary_from_nothing(pool):
    pool.allocate("s", [])
    for length in range(1, 10):
        pool.append("s", [length])
        assert len(pool.block_table("s")) == -(-length // 4) == 8 - pool.num_free_blocks()


def test_what_was_found_is_put_into_the_row(pool):
    pool._cache.handle = Handle(4, range(20, 24))
    assert pool.allocate("s", [1, 2, 3, 4, 5]) == 4
    assert pool.block_table("s") == [5, 0]


def test_a_prompt_is_published_after_its_prefill_and_output_when_the_request_ends(pool):
    pool.allocate("s", [1, 2, 3, 4])
    pool.commit("s")
    pool.append("s", [5])
    pool.commit("s")
    assert [call for call in pool._cache.calls if call[0] == "cache"] == [("cache", [1, 2, 3, 4], False)]
    pool.free("s")
    assert pool._cache.calls[-1] == ("cache", [1, 2, 3, 4, 5], True)
    assert pool.num_free_blocks() == 8


def test_what_was_never_committed_goes_back_and_is_not_published(pool):
    pool.allocate("s", [1, 2, 3, 4, 5])
    pool.commit("s")
    pool.append("s", [6] * 8)
    pool.free("s")
    assert pool._cache.calls[-1] == ("cache", [1, 2, 3, 4, 5], True)
    pool.allocate("t", [1])
    pool.free("t")
    assert pool._cache.calls[-1] == ("cache", [], True)
    assert sorted(pool._cache.pages) == list(range(0, 32, 4))


def test_a_request_with_a_key_neither_finds_nor_publishes(pool):
    pool._cache.handle = Handle(4, range(4))
    assert pool.allocate("keyed", [1] * 5, ("adapter",)) == pool.cached_prefix([1] * 5, ("adapter",)) == 0
    pool.commit("keyed")
    pool.free("keyed")
    assert [call for call in pool._cache.calls if call != "lock"] == [("cache", [], True)]
    assert pool.num_free_blocks() == 8


def test_a_prompt_that_does_not_fit_unlocks_what_it_found(pool):
    with pytest.raises(MemoryError):
        pool.allocate("s", [1] * 33)
    assert pool._cache.calls[-2:] == ["lock", "unlock"]
    pool.allocate("s", [1] * 32)
    with pytest.raises(MemoryError):
        pool.append("s", [1])


def test_a_full_table_of_rows_is_no_room(pool):
    pool._rows.rows.clear()
    with pytest.raises(MemoryError, match="512 rows"):
        pool.allocate("s", [1])


def test_nothing_is_pinned_where_there_is_no_device():
    staged = without_pinning(torch)
    assert not staged.empty(3, dtype=torch.int64, pin_memory=True).is_pinned()
    assert staged.arange is torch.arange


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
def test_tokens_past_int32_are_refused(pool, token):
    with pytest.raises(ValueError, match="int32"):
        pool.allocate("s", [token])
