"""The incremental count of slots and blocks equals a count from nothing, whatever is shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof_traces import Workload, generate, observe, replay
from kvproof_traces.pool_use import PoolUse

BLOCK_SIZE = 4
NUM_BLOCKS = 2000


def counted_from_nothing(tables, context_lens, block_size=BLOCK_SIZE):
    slots = {
        (tables[seq][position // block_size], position % block_size)
        for seq, length in context_lens.items()
        for position in range(length)
    }
    return len(slots), len({block for seq in context_lens for block in tables[seq]})


def pool(tables, block_size=BLOCK_SIZE):
    """Counts on ``tables``, which the test changes; every block that no table names is free."""
    return PoolUse(
        block_size,
        lambda seq: tables[seq],
        lambda: NUM_BLOCKS - len({block for table in tables.values() for block in table}),
    )


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
    use = pool(current)
    for tables, context_lens in moments:
        gone = list(current)
        current.clear()
        current.update(tables)
        assert use.count(context_lens, gone) == counted_from_nothing(tables, context_lens)


@given(tables_with_shared_blocks(), st.integers(1, 20))
def test_while_nothing_comes_or_goes_everybody_grows(moment, num_steps):
    tables, context_lens = moment
    use = pool(tables)
    use.count(context_lens)
    fresh = iter(range(1000, NUM_BLOCKS))
    for _ in range(num_steps):
        for seq in context_lens:
            context_lens[seq] += 1
            while len(tables[seq]) * BLOCK_SIZE < context_lens[seq]:
                tables[seq] = [*tables[seq], next(fresh)]
        assert use.count({}) == counted_from_nothing(tables, context_lens)


@given(st.integers(1, 6), st.integers(1, 40))
def test_a_table_that_grows_as_expected_is_read_once(block_size, num_steps):
    tables, reads = {}, []
    use = pool(tables, block_size)
    tables["a"] = [0]
    use.read_table = lambda seq: reads.append(seq) or tables[seq]
    use.count({"a": 1})
    for length in range(2, num_steps + 2):
        tables["a"] = list(range(-(-length // block_size)))
        assert use.count({}) == (length, len(tables["a"]))
    assert reads == ["a"]


def test_a_sequence_that_was_copied_is_read_again():
    tables = {"a": [0], "b": [0]}
    use = pool(tables)
    assert use.count({"a": 2, "b": 2}) == (2, 1)
    tables["b"] = [1]
    assert use.count({"b": 3}) == (6, 2)


def test_copies_without_names_have_every_table_read_again():
    tables = {"a": [0, 1], "b": [0, 1]}
    use = pool(tables)
    assert use.count({"a": 6, "b": 6}) == (6, 2)
    tables["b"] = [2, 1]
    assert use.count({}, any_changed=True) == (4 + 4 + 3, 3)


def test_blocks_that_change_behind_its_back_are_noticed():
    tables = {"a": [0, 1], "b": [2, 3]}
    use = pool(tables)
    assert use.count({"a": 6, "b": 5}) == (11, 4)
    tables["b"] = [0, 3]  # as a commit may, that finds its block cached
    assert use.count({}) == (4 + 3 + 2, 3)


@pytest.mark.parametrize("kind", ["paged", "stepped", "contiguous", "prefix_caching", "leaky"])
def test_it_is_exact_at_every_step_of_a_replay(kind, request, monkeypatch):
    allocator = request.getfixturevalue(kind)(90, 8)
    num_counts = 0

    def checked(observer):
        nonlocal num_counts
        num_counts += 1
        lens = {seq: observer.batch.context_len(seq) for seq in observer.batch.live()}
        wanted = counted_from_nothing({seq: allocator.block_table(seq) for seq in lens}, lens, 8)
        counted = count(observer)
        assert counted == wanted
        return counted

    count = observe.Observer._count
    monkeypatch.setattr(observe.Observer, "_count", checked)
    workload = Workload(60, max_prompt_tokens=200, mean_output_tokens=30, sample_share=0.4, fork_share=0.4)
    result = replay(generate(workload, seed=3), allocator, max_num_seqs=24)
    assert result.num_steps == num_counts > 100


def test_tables_are_read_only_where_something_may_be_shared():
    tables, reads = {}, []
    use = pool(tables)
    use.read_table = lambda seq: reads.append(seq) or tables[seq]
    tables["a"] = [0, 1]
    assert use.count({}, fresh={"a": 6}) == (6, 2)
    tables["b"] = [2]
    assert use.count({}, fresh={"b": 4}) == (7 + 4, 3)
    tables["b"].append(3)
    assert use.count({}) == (8 + 5, 4)
    assert reads == []
    tables["a"].append(4)
    tables["c"] = [0, 5]  # found the first block of "a", which was never read
    assert use.count({"c": 7}) == (9 + 6 + 3, 6)
    assert reads[0] == "c"
    assert sorted(reads) == ["a", "b", "c"]
