"""nano-vllm's block manager behind the contract, over a package whose own ``__init__`` must never be run."""

import sys
from pathlib import Path

import pytest

from kvproof_impls import nano_vllm
from kvproof_impls.nano_vllm import NanoVllmAllocator

SEQUENCE = """
class Sequence:
    block_size = 256

    def __init__(self, token_ids):
        self.token_ids, self.last_token = list(token_ids), token_ids[-1]
        self.num_tokens, self.num_cached_tokens, self.num_scheduled_tokens = len(token_ids), 0, 0
        self.block_table = []

    @property
    def num_blocks(self):
        return -(-self.num_tokens // self.block_size)

    def block(self, i):
        return self.token_ids[i * self.block_size : (i + 1) * self.block_size]

    def append_token(self, token_id):
        self.token_ids.append(token_id)
        self.num_tokens += 1
"""
MANAGER = """
from types import SimpleNamespace


class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.free_block_ids, self.size, self.hit = list(range(num_blocks)), block_size, 0
        self.hash_to_block_id, self.blocks, self.calls = {}, {}, []

    def can_allocate(self, seq):
        fits = seq.num_blocks - self.hit <= len(self.free_block_ids)
        return self.hit if fits else -1

    def allocate(self, seq, num_cached_blocks):
        seq.block_table += [self._allocate_block() for _ in range(seq.num_blocks)]
        seq.num_cached_tokens = num_cached_blocks * self.size

    def deallocate(self, seq):
        self.free_block_ids += seq.block_table

    def may_append(self, seq):
        if seq.num_tokens % self.size == 1:
            seq.block_table.append(self._allocate_block())

    def hash_blocks(self, seq):
        self.calls.append((seq.num_cached_tokens, seq.num_scheduled_tokens))

    def compute_hash(self, token_ids, prefix=-1):
        return hash((tuple(token_ids), prefix))

    def _allocate_block(self):
        return self.free_block_ids.pop(0)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch):
    """A checkout on the import path; importing the package itself fails, as it does without CUDA."""
    engine = tmp_path / "nanovllm" / "engine"
    engine.mkdir(parents=True)
    (engine.parent / "__init__.py").write_text("raise ImportError('needs flash-attn')\n")
    (engine / "sequence.py").write_text(SEQUENCE)
    (engine / "block_manager.py").write_text(MANAGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    nano_vllm.engine.cache_clear()
    yield engine
    nano_vllm.engine.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "nanovllm"]:
        del sys.modules[name]


@pytest.fixture
def pool(checkout):
    return NanoVllmAllocator(4, 4)


def test_the_block_manager_is_imported_without_the_engine(pool):
    assert type(pool._manager).__module__ == "nanovllm.engine.block_manager"


def test_a_sequence_grows_by_a_block_at_each_boundary_whatever_its_first_length(pool):
    pool.allocate("s", [])
    for length in range(1, 10):
        pool.append("s", [length])
        assert len(pool.block_table("s")) == -(-length // 4)


def test_blocks_of_one_token_grow_too(checkout):
    pool = NanoVllmAllocator(4, 1)
    pool.allocate("s", [1])
    pool.append("s", [2, 3])
    assert len(pool.block_table("s")) == 3


def test_a_chunk_that_does_not_fit_appends_no_token(pool):
    pool.allocate("s", [1] * 15)
    with pytest.raises(MemoryError):
        pool.append("s", [2, 3])
    assert pool._sequences["s"].num_tokens == 15
    pool.append("s", [2])


def test_a_commit_schedules_what_is_new_and_is_done_with_it(pool):
    pool.allocate("s", [1] * 5)
    pool.commit("s")
    pool.append("s", [2])
    pool.commit("s")
    assert pool._manager.calls == [(0, 5), (5, 1)]


def test_a_request_with_a_key_neither_finds_nor_publishes(pool):
    pool._manager.hit = 1
    assert pool.allocate("plain", [1] * 5) == 4
    assert pool.allocate("keyed", [1] * 5, ("adapter",)) == 0
    pool.commit("keyed")
    assert pool._manager.calls == []
    with pytest.raises(MemoryError):
        pool.allocate("no room without the hit", [1] * 4, ("adapter",))


def test_a_look_up_compares_tokens_and_leaves_the_last_block(pool):
    manager, first = pool._manager, [1, 2, 3, 4]
    manager.hash_to_block_id[manager.compute_hash(first)] = 2
    manager.blocks[2] = type("Block", (), {"token_ids": first})
    assert pool.cached_prefix([*first, 5]) == 4
    assert pool.cached_prefix(first) == 0
    manager.blocks[2].token_ids = [9, 9, 9, 9]
    assert pool.cached_prefix([*first, 5]) == 0


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
def test_tokens_past_int32_are_refused(pool, token):
    with pytest.raises(ValueError, match="int32"):
        pool.allocate("s", [token])


def test_a_checkout_with_other_calls_is_refused(checkout):
    (checkout / "block_manager.py").write_text(MANAGER.replace("seq, num_cached_blocks", "seq"))
    with pytest.raises(ImportError, match="written for nano-vllm bb823b3, where it takes"):
        NanoVllmAllocator(4, 4)
