"""What our windowed allocator promises beyond the laws: when a block comes free, and what stays findable."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof_impls.contract import BlockAllocator


def test_it_has_the_shape_of_the_contract_and_reserves_one_block(our_windowed: Any) -> None:
    allocator = our_windowed(4, 2, window=3)
    assert isinstance(allocator, BlockAllocator)
    assert (allocator.num_blocks, allocator.pool_blocks, allocator.null_block) == (4, 5, 4)


def test_a_block_comes_free_with_the_first_query_that_does_not_see_it(our_windowed: Any) -> None:
    allocator = our_windowed(8, 2, window=3)
    allocator.allocate("a", [1, 2, 3, 4])
    allocator.append("a", [5])  # the query at position 4 sees 2, 3 and 4
    assert allocator.block_table("a") == [8, 1, 2]
    assert allocator.num_free_blocks() == 6


def test_a_chunk_keeps_what_its_first_query_sees(our_windowed: Any) -> None:
    allocator = our_windowed(8, 2, window=3)
    allocator.allocate("a", [1, 2, 3])
    allocator.append("a", [4] * 6)
    assert allocator.block_table("a") == [0, 1, 2, 3, 4]


def test_a_long_decode_holds_as_many_blocks_as_its_window_touches(our_windowed: Any) -> None:
    allocator = our_windowed(4, 2, window=3)
    allocator.allocate("a", [1])
    for token in range(100):
        allocator.append("a", [token])
        assert allocator.num_free_blocks() >= 2


def test_a_step_names_the_null_block_in_its_table(our_windowed: Any) -> None:
    allocator = our_windowed(8, 2, window=3)
    allocator.allocate("a", [1, 2, 3, 4])
    assert allocator.append_step(["a"], [5]).block_tables[:, :3].tolist() == [[8, 1, 2]]


def test_a_published_block_stays_findable_after_it_left_the_window(our_windowed: Any) -> None:
    allocator = our_windowed(8, 2, window=3)
    allocator.allocate("a", [1, 2, 3, 4])
    allocator.commit("a")
    allocator.append("a", [5, 6])
    assert allocator.cached_prefix([1, 2, 3, 4, 0]) == 4


def test_a_chain_that_lost_a_block_before_it_was_published_is_not_published(our_windowed: Any) -> None:
    allocator = our_windowed(8, 2, window=3)
    allocator.allocate("a", [1, 2, 3, 4])
    allocator.append("a", [5, 6])
    allocator.commit("a")
    assert allocator.cached_prefix([1, 2, 3, 4, 0]) == 0


def test_a_window_of_nothing_is_refused(our_windowed: Any) -> None:
    with pytest.raises(ValueError, match=r"window \(0\) must be at least 1"):
        our_windowed(4, 2, window=0)
