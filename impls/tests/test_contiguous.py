"""The allocator that paging is compared with wastes just what it is known to waste."""

from __future__ import annotations

import pytest

from kvproof_impls.contiguous import ContiguousAllocator
from kvproof_impls.contract import BlockAllocator
from kvproof_impls.paged_python import PagedAllocator

LENGTHS = (40, 128, 300, 64, 210, 96, 180, 48, 150, 80, 60, 420, 33, 256, 90, 110)


def num_admitted(allocator: BlockAllocator) -> int:
    """Requests admitted in order until the first that does not fit."""
    for num_live, length in enumerate(LENGTHS):
        if not allocator.can_allocate(length):
            return num_live
        allocator.allocate(num_live, [0] * length)
    return len(LENGTHS)


def test_4_sequences_fit_where_paging_fits_13() -> None:
    assert num_admitted(ContiguousAllocator(128, 16, max_model_len=512)) == 4
    assert num_admitted(PagedAllocator(128, 16)) == 13


def test_every_sequence_reserves_the_maximum_in_consecutive_blocks() -> None:
    allocator = ContiguousAllocator(256, 16, max_model_len=2048)
    allocator.allocate("a", [0] * 30)
    table = list(allocator.block_table("a"))
    assert table == list(range(128))
    assert len(table) * 16 - 30 == 2018


def test_a_quarter_of_the_pool_is_reserved_by_default() -> None:
    assert ContiguousAllocator(128, 16).max_model_len == 512


def test_blocks_in_holes_that_are_too_small_are_free_and_of_no_use() -> None:
    allocator = ContiguousAllocator(16, 4, max_model_len=24)
    for seq, max_tokens in enumerate((16, 16, 16, 16)):
        allocator.allocate(seq, [0], max_tokens=max_tokens)
    allocator.free(0)
    allocator.free(2)
    assert allocator.num_free_blocks() == 8
    assert [len(hole) for hole in allocator.holes()] == [4, 4]
    assert not allocator.can_allocate(1)
    with pytest.raises(MemoryError, match="no hole of 6 consecutive blocks, 8 free in all"):
        allocator.allocate("b", [0])


def test_the_first_hole_that_fits_is_taken() -> None:
    allocator = ContiguousAllocator(16, 1, max_model_len=4)
    for seq in range(4):
        allocator.allocate(seq, [0])
    allocator.free(2)
    allocator.free(1)
    allocator.allocate("b", [0])
    assert list(allocator.block_table("b")) == [4, 5, 6, 7]


def test_a_sequence_that_outgrows_its_reservation_is_refused_and_unchanged() -> None:
    allocator = ContiguousAllocator(4, 4, max_model_len=4)
    allocator.allocate("a", [1, 2, 3])
    with pytest.raises(MemoryError, match="5 tokens don't fit in the 4 reserved for 'a'"):
        allocator.append("a", [4, 5])
    allocator.append("a", [4])
    assert not allocator.can_allocate(5)


def test_without_a_reservation_there_is_nothing_to_place() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        ContiguousAllocator(4, 4).allocate("a", [], max_tokens=0)
    with pytest.raises(ValueError, match="max_model_len"):
        ContiguousAllocator(4, 4, max_model_len=0)
