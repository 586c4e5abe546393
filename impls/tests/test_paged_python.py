"""What our allocator promises beyond the laws: which blocks it picks, what it keeps cached, what an append costs."""

from __future__ import annotations

import array

import pytest

from kvproof_impls.contract import BlockAllocator
from kvproof_impls.paged_python import PagedAllocator


def filled(allocator: PagedAllocator, seq: str, tokens: list[int]) -> None:
    allocator.allocate(seq, tokens)
    allocator.commit(seq)


def test_it_has_the_shape_of_the_contract() -> None:
    assert isinstance(PagedAllocator(4, 16), BlockAllocator)


def test_800_prompt_tokens_and_4_samples_of_150_take_90_blocks_of_16() -> None:
    allocator = PagedAllocator(200, 16)
    allocator.allocate("a", list(range(800)))
    copies = [allocator.fork("a", child) for child in "bcd"]
    for seq in "abcd":
        copies += [allocator.append(seq, [token]) for token in range(150)]
    assert not any(copies)
    assert 200 - allocator.num_free_blocks() == 90


def test_a_diverging_write_after_200_shared_blocks_copies_one() -> None:
    allocator = PagedAllocator(256, 16)
    allocator.allocate("a", list(range(200 * 16 - 1)))
    allocator.fork("a", "b")
    before = allocator.num_free_blocks()
    copies = allocator.append("b", [7])
    assert len(copies) == 1
    assert before - allocator.num_free_blocks() == 1


def test_a_prompt_of_13_blocks_does_not_fit_in_8() -> None:
    allocator = PagedAllocator(8, 16)
    assert not allocator.can_allocate(200)
    assert allocator.can_allocate(100)
    with pytest.raises(MemoryError, match="13 blocks needed, 8 of 8 free"):
        allocator.allocate("a", list(range(200)))


def test_blocks_without_content_are_handed_out_before_cached_ones() -> None:
    allocator = PagedAllocator(4, 2)
    filled(allocator, "a", [1, 2, 3, 4])
    allocator.free("a")
    allocator.allocate("b", [5, 6, 7, 8])
    assert allocator.cached_prefix([1, 2, 3, 4, 0]) == 4


def test_the_least_recently_used_prefix_is_evicted_first_and_from_its_end() -> None:
    allocator = PagedAllocator(4, 2)
    filled(allocator, "old", [1, 1, 2, 2])
    filled(allocator, "new", [3, 3, 4, 4])
    allocator.free("old")
    allocator.free("new")
    allocator.allocate("c", [9])
    assert allocator.cached_prefix([1, 1, 2, 2, 0]) == 2
    assert allocator.cached_prefix([3, 3, 4, 4, 0]) == 4


def test_a_hit_makes_a_prefix_recent_again() -> None:
    allocator = PagedAllocator(4, 2)
    filled(allocator, "a", [1, 1])
    filled(allocator, "b", [2, 2])
    allocator.free("a")
    allocator.free("b")
    allocator.allocate("again", [1, 1, 5])
    allocator.free("again")
    allocator.allocate("c", [9] * 6)
    assert allocator.cached_prefix([1, 1, 0]) == 2
    assert allocator.cached_prefix([2, 2, 0]) == 0


def test_a_block_of_a_sequence_that_was_rolled_back_is_forgotten_when_it_is_written_again() -> None:
    allocator = PagedAllocator(4, 2)
    filled(allocator, "a", [1, 2])
    allocator.truncate("a", 1)
    assert allocator.cached_prefix([1, 2, 0]) == 2
    assert not allocator.append("a", [3])
    assert allocator.cached_prefix([1, 2, 0]) == 0


def test_a_block_that_is_published_again_below_another_parent_loses_its_old_name() -> None:
    allocator = PagedAllocator(5, 1)
    allocator.allocate("first", [1])
    allocator.allocate("twin", [1, 2])  # its first block doubles that of "first", which is published
    allocator.commit("first")
    allocator.fork("twin", "late")
    allocator.commit("twin")
    allocator.free("first")
    allocator.allocate("pressure", [7, 8, 9])  # evicts the cached one
    allocator.commit("late")
    assert allocator.cached_prefix([1, 2, 0]) == 2
    assert sorted(allocator._cached.values()) == sorted(allocator._labels)


def test_reserved_room_is_used_by_append_and_given_back_by_truncate() -> None:
    allocator = PagedAllocator(8, 4)
    allocator.allocate("a", [1, 2, 3])
    allocator.reserve("a", 8)
    assert len(allocator.block_table("a")) == 3
    assert not allocator.append("a", [4, 5])
    assert len(allocator.block_table("a")) == 3
    allocator.truncate("a", 5)
    assert len(allocator.block_table("a")) == 2


def test_a_fork_does_not_share_the_reserved_blocks() -> None:
    allocator = PagedAllocator(8, 4)
    allocator.allocate("a", [1, 2, 3])
    allocator.reserve("a", 8)
    allocator.fork("a", "b")
    assert len(allocator.block_table("b")) == 1
    assert len(allocator.append("a", [4])) == 1


def test_arrays_and_tuples_are_tokens_too() -> None:
    allocator = PagedAllocator(8, 2)
    allocator.allocate("a", array.array("i", [1, 2, 3]))
    allocator.append("a", (4,))
    allocator.commit("a")
    assert allocator.cached_prefix([1, 2, 3, 4, 5]) == 4


@pytest.mark.parametrize("shape", [(0, 16), (-1, 16), (4, 0)])
def test_a_pool_of_nothing_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        PagedAllocator(*shape)
