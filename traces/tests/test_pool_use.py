"""The incremental count of slots and blocks equals a count from nothing, whatever is shared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvproof_traces.pool_use import PoolUse

BLOCK_SIZE = 4


def counted_from_nothing(tables, context_lens):
    slots = {
        (tables[seq][position // BLOCK_SIZE], position % BLOCK_SIZE)
        for seq, length in context_lens.items()
        for position in range(length)
    }
    return len(slots), len({block for seq in context_lens for block in tables[seq]})


@st.composite
def tables_with_shared_blocks(draw):
    """Sequences that share leading blocks, the last of them perhaps filled to different depths; some reserve ahead."""
    trunk = draw(st.integers(0, 4))
    tables, lens, fresh = {}, {}, iter(range(100, 1000))
    for seq in draw(st.sets(st.integers(0, 5))):
        length = draw(st.integers(1, 24))
        num_blocks = -(-length // BLOCK_SIZE) + draw(st.integers(0, 2))
        num_shared = min(trunk, num_blocks)
        tables[seq] = [*range(num_shared), *(next(fresh) for _ in range(num_blocks - num_shared))]
        lens[seq] = length
    return tables, lens


@given(st.lists(tables_with_shared_blocks(), min_size=1, max_size=4))
def test_it_equals_a_count_of_every_slot(moments):
    current = {}
    use = PoolUse(BLOCK_SIZE, lambda seq: current[seq])
    for tables, context_lens in moments:
        current = tables
        assert use.count(context_lens, changed=set(tables)) == counted_from_nothing(tables, context_lens)


@given(st.integers(1, 6), st.integers(0, 40))
def test_tables_are_read_when_they_can_have_grown(block_size, num_steps):
    table, reads = [], []

    def read(seq):
        reads.append(seq)
        return table

    use = PoolUse(block_size, read)
    for length in range(1, num_steps + 1):
        table = list(range(-(-length // block_size)))
        assert use.count({"a": length}, set()) == (length, len(table))
    assert len(reads) <= 1 + 2 * (num_steps // block_size + 1)


def test_a_sequence_that_was_copied_is_read_again():
    tables = {"a": [0], "b": [0]}
    use = PoolUse(BLOCK_SIZE, tables.__getitem__)
    assert use.count({"a": 2, "b": 2}, set()) == (2, 1)
    tables["b"] = [1]
    assert use.count({"a": 2, "b": 3}, {"b"}) == (5, 2)
