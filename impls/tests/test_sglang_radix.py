"""SGLang's slot allocator and tree behind the contract, over recorded signatures and the plainest paging."""

import importlib.util
import inspect
from types import SimpleNamespace

import pytest
import torch

from kvproof_impls import sglang_radix, sglang_trees
from kvproof_impls.sglang_radix import PythonCoreAllocator, RadixCacheAllocator, SglangAllocator
from kvproof_impls.sglang_trees import new_request


class Rows:
    def __init__(self, size, max_context_len, device, enable_memory_saver):
        self.req_to_token = torch.zeros(size + 1, max_context_len, dtype=torch.int32)
        self.free = list(range(1, size + 1))

    def alloc_rows(self, need_size):
        return [self.free.pop() for _ in range(need_size)]

    def free_rows(self, rows):
        self.free += rows

    def write(self, indices, values):
        self.req_to_token[indices] = values


class Slots:
    """Pages from a list, one after the other; page 0 is nobody's."""

    def __init__(self, size, page_size, dtype, device, kvcache, need_sort):
        self.page, self.pages = page_size, list(range(1, size // page_size + 1))

    def available_size(self):
        return len(self.pages) * self.page

    def alloc_extend(
        self, prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens, num_new_pages=None
    ):
        assert int(seq_lens) - int(prefix_lens) == extend_num_tokens
        return self._slots(int(prefix_lens), int(seq_lens), int(last_loc))

    def alloc_decode(self, seq_lens, seq_lens_cpu, last_loc):
        ends = zip(seq_lens.tolist(), last_loc.tolist(), strict=True)
        return torch.cat([self._slots(end - 1, end, last) for end, last in ends])

    def free_segment(self, free_index, *, start_pos):
        assert start_pos % self.page == 0
        self.pages += (free_index[:: self.page] // self.page).tolist()

    def _slots(self, start, end, last):
        slots = []
        for position in range(start, end):
            last = last + 1 if position % self.page else self.pages.pop(0) * self.page
            slots.append(last)
        return torch.tensor(slots, dtype=torch.int64)


class SingleSlots(Slots):
    """Pages of one token, in the order in which they were given back."""

    def __init__(self, size, dtype, device, kvcache, need_sort):
        super().__init__(size, 1, dtype, device, kvcache, need_sort)

    def alloc(self, need_size):
        taken, self.pages = self.pages[:need_size], self.pages[need_size:]
        return torch.tensor(taken, dtype=torch.int64)


class Tree:
    def __init__(self, params):
        self.calls, self.evictable, self.slots = [], 0, params.token_to_kv_pool_allocator
        self._tree_core_backend, self.parts = params.tree_core_backend, params.tree_components

    def match_prefix(self, params):
        self.calls.append(("match", params.key.limit, params.key.extra_key))
        return SimpleNamespace(device_prefix_len=0, last_device_node="root")

    def path_device_indices(self, node):
        return torch.zeros(0, dtype=torch.int64)

    def lock(self, node):
        self.calls.append("lock")
        return node

    def unlock(self, lock):
        self.calls.append("unlock")

    def evict(self, params):
        self.calls.append(("evict", params.num_tokens))
        self.slots.pages += [90] * -(-params.num_tokens // self.slots.page)

    def evictable_size(self):
        return self.evictable

    def checkpoint(self, req, *, up_to):
        self.calls.append(("checkpoint", list(req.full_untruncated_fill_ids), up_to))
        self.prompt = list(req.origin_input_ids)


class UnifiedTree(Tree):
    def lock(self, node_id, skip_lock_components=()):
        return super().lock(node_id)


def init_params(
    disable,
    req_to_token_pool,
    token_to_kv_pool_allocator,
    page_size,
    *,
    tree_components=None,
    tree_core_backend=None,
):
    return SimpleNamespace(
        token_to_kv_pool_allocator=token_to_kv_pool_allocator,
        tree_components=tree_components,
        tree_core_backend=tree_core_backend,
    )


@pytest.fixture
def library(monkeypatch):
    parts = SimpleNamespace(
        torch=torch,
        ReqToTokenPool=Rows,
        PagedTokenToKVPoolAllocator=Slots,
        TokenToKVPoolAllocator=SingleSlots,
        RadixCache=Tree,
        UnifiedRadixCache=UnifiedTree,
        ComponentType=SimpleNamespace(FULL="full"),
        CacheInitParams=init_params,
        RadixKey=lambda token_ids, extra_key, limit: SimpleNamespace(limit=limit, extra_key=extra_key),
        MatchPrefixParams=lambda key: SimpleNamespace(key=key),
        EvictParams=lambda num_tokens: SimpleNamespace(num_tokens=num_tokens),
    )
    monkeypatch.setattr(sglang_radix, "library", lambda: parts)
    monkeypatch.setattr(sglang_trees, "library", lambda: parts)
    return parts


@pytest.fixture
def pool(library):
    """Eight blocks of four tokens."""
    return SglangAllocator(8, 4)


def test_an_engine_s_tree_has_the_compiled_core_and_one_component(pool, library):
    assert (type(pool._tree), pool._tree._tree_core_backend, pool._tree.parts) == (UnifiedTree, "rust", ("full",))
    assert PythonCoreAllocator(8, 4)._tree._tree_core_backend == "python"
    assert type(RadixCacheAllocator(8, 4)._tree) is Tree


def test_a_core_that_is_silently_another_is_refused(library):
    class Fallback(UnifiedTree):
        def __init__(self, params):
            super().__init__(params)
            self._tree_core_backend = "python"

    library.UnifiedRadixCache = Fallback
    with pytest.raises(RuntimeError, match="no rust core here"):
        SglangAllocator(8, 4)


def test_blocks_of_one_token_come_from_the_allocator_that_an_engine_has_for_them(library):
    pool = SglangAllocator(8, 1)
    pool.allocate("a", [1, 2])
    pool.append("a", [3])
    pool.append_step(("a",), [4])
    assert (list(pool.block_table("a")), pool.num_free_blocks()) == ([1, 2, 3, 4], 4)


def test_an_empty_sequence_decodes_into_a_block_of_its_own(library):
    for size in (1, 4):
        pool = SglangAllocator(8, size)
        pool.allocate("a", [])
        assert pool.append_step(("a",), [7]).slot_mapping.tolist() == [size]
        assert pool.num_free_blocks() == 7


def test_a_match_leaves_a_token_and_is_kept_apart_by_its_key(pool):
    pool.allocate("a", [1] * 8, ("adapter",))
    pool.allocate("b", [])
    assert [call for call in pool._tree.calls if call != "lock"] == [("match", 7, "('adapter',)"), ("match", 0, None)]


def test_a_table_of_tokens_is_read_as_a_table_of_blocks(pool):
    pool.allocate("a", [1] * 6)
    pool.append("a", [1] * 3)
    assert list(pool.block_table("a")) == [1, 2, 3]
    assert pool.num_free_blocks() == 5


def test_a_step_takes_a_block_where_one_is_full_and_says_where_it_writes(pool):
    pool.allocate("a", [1] * 4)
    pool.allocate("b", [1] * 5)
    for batch_of in (("a", "b"), ("b", "a")):
        batch = pool.append_step(batch_of, [7, 8])
        lengths = [5, 6] if batch_of == ("a", "b") else [7, 6]
        assert batch.context_lens.tolist() == list(batch.context_lens_host) == lengths
        for row, seq in enumerate(batch_of):
            table = pool.block_table(seq)
            assert batch.block_tables[row, : len(table)].tolist() == table
            assert batch.slot_mapping[row] == table[-1] * 4 + (lengths[row] - 1) % 4


def test_a_prompt_is_published_after_its_prefill_and_output_when_the_request_ends(pool):
    pool.allocate("a", [1, 2, 3, 4])
    pool.commit("a")
    pool.append_step(("a",), [5])
    pool.commit_step(("a",))
    told = [call for call in pool._tree.calls if call[0] == "checkpoint"]
    assert told == [("checkpoint", [1, 2, 3, 4], 4)]
    assert pool._tree.prompt == [1, 2, 3, 4]
    pool.free("a")
    assert pool._tree.calls[-2:] == [("checkpoint", [1, 2, 3, 4, 5], 5), "unlock"]
    assert pool._tree.prompt == [1, 2, 3, 4]  # where an engine splits the leaf


def test_what_was_never_committed_is_not_published(pool):
    pool.allocate("a", [1, 2, 3, 4])
    pool.free("a")
    assert not [call for call in pool._tree.calls if call[0] == "checkpoint"]
    assert pool.num_free_blocks() == 8


def test_eviction_comes_first_and_only_when_it_is_enough(pool):
    pool.allocate("a", [1] * 28)
    pool._tree.evictable = 4
    with pytest.raises(MemoryError):
        pool.allocate("b", [1] * 12)
    assert ("evict", 4) not in pool._tree.calls
    assert pool._tree.calls[-1] == "unlock"
    pool.allocate("b", [1] * 8)
    assert ("evict", 4) in pool._tree.calls


def test_a_batch_with_a_row_that_can_not_be_is_refused(pool):
    pool.allocate("a", [1])
    for seqs, tokens, error in ((("a", "a"), [1, 1], KeyError), (("ghost",), [1], KeyError), (("a",), [], ValueError)):
        with pytest.raises(error):
            pool.append_step(seqs, tokens)
    assert len(pool.block_table("a")) == 1


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed here")
@pytest.mark.parametrize(
    ("recorded", "name", "method"),
    [
        (Rows, "ReqToTokenPool", "__init__"),
        (Rows, "ReqToTokenPool", "alloc_rows"),
        (Slots, "PagedTokenToKVPoolAllocator", "__init__"),
        (Slots, "PagedTokenToKVPoolAllocator", "alloc_extend"),
        (Slots, "PagedTokenToKVPoolAllocator", "alloc_decode"),
        (Slots, "PagedTokenToKVPoolAllocator", "free_segment"),
        (SingleSlots, "TokenToKVPoolAllocator", "__init__"),
        (SingleSlots, "TokenToKVPoolAllocator", "alloc"),
        (SingleSlots, "TokenToKVPoolAllocator", "free_segment"),
        (Tree, "RadixCache", "checkpoint"),
        (Tree, "RadixCache", "lock"),
        (Tree, "RadixCache", "evict"),
        (UnifiedTree, "UnifiedRadixCache", "lock"),
        (UnifiedTree, "UnifiedRadixCache", "unlock"),
        (UnifiedTree, "UnifiedRadixCache", "evict"),
        (UnifiedTree, "UnifiedRadixCache", "match_prefix"),
    ],
)
def test_the_installed_library_takes_what_was_recorded(recorded, name, method):
    installed = getattr(getattr(sglang_trees.library(), name), method)
    assert list(inspect.signature(getattr(recorded, method)).parameters) == list(
        inspect.signature(installed).parameters
    )


def test_a_request_has_what_the_tree_asks_of_one():
    request = new_request([1], ("salt",))
    assert (request.extra_key, request.priority, request.kv.swa_evict_floor) == ("('salt',)", 0, 0)
