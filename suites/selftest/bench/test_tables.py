"""States of a block table: each is a permutation of its pool, and churn survives being cut to another block size."""

from types import SimpleNamespace

import pytest

from kvproof_suites.bench.tables import PAGED_STATES, lay_out_batch, physical_order, recut, split_rows, without_holes

CHURNED = SimpleNamespace(block_size=16, num_blocks=8, block_tables=[[5, 1], [2, 7, 1]])


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 256])
@pytest.mark.parametrize("state", PAGED_STATES)
def test_every_state_owns_each_block_of_its_pool_once(state, block_size):
    pages = lay_out_batch(state, 3, 100, block_size, CHURNED)
    owned = [block for table in pages.tables for block in table]
    assert sorted(owned) == list(range(pages.num_blocks))
    assert {len(table) for table in pages.tables} == {-(-100 // block_size)}


def test_identity_counts_up():
    assert lay_out_batch("identity", 2, 40, 16, CHURNED).tables == ((0, 1, 2), (3, 4, 5))


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
    with pytest.raises(ValueError, match="'dense'; known: identity, shuffled, churned"):
        physical_order("dense", 4, 16, CHURNED, 0)


def test_turns_share_the_pool_and_no_block():
    pages = lay_out_batch("shuffled", 6, 33, 16, CHURNED)
    turns = split_rows(pages, 3)
    assert sum((turn.tables for turn in turns), ()) == pages.tables
    assert {turn.num_blocks for turn in turns} == {pages.num_blocks}
