"""States of a block table: each is a permutation of its pool, and churn survives being cut to another block size."""

from types import SimpleNamespace

import pytest

from kvproof_suites.bench.tables import (
    PAGED_STATES,
    lay_out_batches,
    physical_order,
    recut,
    shared_tokens,
    without_holes,
)

CHURNED = SimpleNamespace(block_size=16, num_blocks=8, block_tables=[[5, 1], [2, 7, 1]])


SEQS = ((100, 1), (40, 3), (100, 100))


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 256])
@pytest.mark.parametrize("state", PAGED_STATES)
def test_every_state_owns_each_block_of_its_pool(state, block_size):
    batches = lay_out_batches(state, SEQS, 2, block_size, CHURNED)
    owned = {block for pages in batches for table in pages.tables for block in table}
    assert owned == set(range(batches[0].num_blocks))
    for pages in batches:
        assert [len(table) for table in pages.tables] == [-(-length // block_size) for length in (100, 40, 100)]
        assert (pages.context_lens, pages.query_lens) == ((100, 40, 100), (1, 3, 100))


@pytest.mark.parametrize("state", [state for state in PAGED_STATES if state != "shared-prefix"])
def test_no_block_is_owned_twice_and_launches_that_follow_each_other_meet_other_blocks(state):
    batches = lay_out_batches(state, SEQS, 3, 16, CHURNED)
    owned = [block for pages in batches for table in pages.tables for block in table]
    assert len(owned) == len(set(owned)) == batches[0].num_blocks


def test_a_shared_prefix_is_the_same_blocks_for_all_sequences_of_a_launch_and_no_more():
    first, second = lay_out_batches("shared-prefix", ((1024, 1), (700, 1)), 2, 16, CHURNED)
    for pages in (first, second):
        long, short = pages.tables
        assert long[:16] == short[:16], "256 tokens: half of the shorter context, in whole units"
        assert not set(long[16:]) & set(short)
    assert not {block for table in first.tables for block in table} & {
        block for table in second.tables for block in table
    }


@pytest.mark.parametrize(
    ("state", "context_lens", "block_size", "expected"),
    [
        ("shared-prefix", (1024, 1024), 16, 512),
        ("shared-prefix", (1024, 1024), 256, 512),
        ("shared-prefix", (1024, 1024), 24, 504),
        ("shared-prefix", (100, 100), 16, 48),
        ("shared-prefix", (20, 20), 16, 0),
        ("shared-prefix", (1024,), 16, 0),
        ("shuffled", (1024, 1024), 16, 0),
    ],
)
def test_a_prefix_is_whole_blocks_and_as_long_for_all_usual_block_sizes(state, context_lens, block_size, expected):
    assert shared_tokens(state, context_lens, block_size) == expected


def test_identity_counts_up():
    (pages,) = lay_out_batches("identity", ((40, 1), (40, 1)), 1, 16, CHURNED)
    assert pages.tables == ((0, 1, 2), (3, 4, 5))


def test_shuffled_repeats_with_its_seed_only():
    orders = [physical_order("shuffled", 50, 16, CHURNED, seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_churned_is_the_order_of_the_replay_and_goes_on_in_the_pool_behind():
    # 5, 1, 2, 7 and, eight blocks further, 13, 9; by rank
    assert physical_order("churned", 6, 16, CHURNED, 0) == [2, 0, 1, 3, 5, 4]


@pytest.mark.parametrize(
    ("new_block_size", "expected"),
    [(16, [5, 1, 2]), (8, [10, 11, 2, 3, 4, 5]), (32, [2, 0, 1]), (24, [3, 0, 1]), (256, [0])],
)
def test_another_block_size_covers_the_same_places_in_the_same_order(new_block_size, expected):
    assert recut([5, 1, 2, 5], 16, new_block_size) == expected


def test_ranks_keep_the_order_and_leave_no_hole():
    assert without_holes([40, 7, 1000, 8]) == [2, 0, 3, 1]


def test_a_replay_without_blocks_is_refused():
    with pytest.raises(ValueError, match="left no block behind"):
        physical_order("churned", 4, 16, SimpleNamespace(block_size=16, num_blocks=8, block_tables=[]), 0)


def test_an_unknown_state_names_the_known_ones():
    with pytest.raises(ValueError, match="'dense'; known: identity, shuffled, churned, shared"):
        physical_order("dense", 4, 16, CHURNED, 0)
