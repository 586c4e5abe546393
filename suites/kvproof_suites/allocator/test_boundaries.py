"""Lengths around the block size: where a table is one block short, or one too long."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require

NUM_BLOCKS = 24  # an allocator that reserves a quarter of the pool has room for the longest sequence here
LENGTHS = {
    "0": (0, 0),
    "1": (0, 1),
    "B-1": (1, -1),
    "B": (1, 0),
    "B+1": (1, 1),
    "2B": (2, 0),
}
at_each_length = pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)


@pytest.mark.law("A7")
def test_a_prompt_of_whole_blocks_has_a_slot_for_each_of_the_next_tokens(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", list(range(2 * block_size)))
    for token in range(block_size + 1):
        driver.append("s", [token])
    assert len(driver.tables["s"]) * block_size >= 3 * block_size + 1


@pytest.mark.law("A7")
@at_each_length
def test_a_prompt_of_any_length_has_its_slots_and_grows_by_one(drive, block_size, length):
    num_tokens = length[0] * block_size + length[1]
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", list(range(num_tokens)))
    driver.append("s", [7])
    assert len(driver.tables["s"]) * block_size >= num_tokens + 1


@pytest.mark.law("A7")
@at_each_length
def test_a_chunk_that_ends_past_a_boundary_has_its_slots(drive, block_size, length):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", [1])
    for num_tokens in (length[0] * block_size + length[1], block_size, 1):
        driver.append("s", list(range(num_tokens)))


@pytest.mark.law("A1")
@at_each_length
def test_no_block_is_taken_before_a_token_needs_it(drive, block_size, length):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", list(range(length[0] * block_size + length[1])))
    driver.append("s", [])
    for token in range(block_size + 1):
        driver.append("s", [token])


@pytest.mark.law("A1")
def test_sequences_that_come_and_go_leave_every_block_accounted_for(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    for round_ in range(6):
        driver.allocate(("a", round_), list(range(block_size)))
        driver.append(("a", round_), [1, 2])
        driver.allocate(("b", round_), [round_])
        driver.free(("a", round_))
        driver.append(("b", round_), [3] * block_size)
        driver.free(("b", round_))


@pytest.mark.law("A3")
def test_sequences_that_grow_side_by_side_never_write_into_each_other(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    for seq in "abc":
        driver.allocate(seq, [1] * block_size)
    for token in range(2 * block_size + 1):
        for seq in "cab":
            driver.append(seq, [token])


@pytest.mark.law("A7")
@pytest.mark.parametrize("num_ahead", [0, 1, 2, 8])
def test_reserved_room_is_in_the_table_and_is_enough(drive, make_allocator, block_size, num_ahead):
    require(make_allocator, "reserve")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", list(range(block_size)))
    driver.reserve("s", num_ahead)
    reserved = list(driver.tables["s"])
    assert len(reserved) * block_size >= block_size + num_ahead
    while driver.allocator.can_allocate(block_size):
        driver.allocate(("other", driver.num_free()), driver.fresh_tokens(block_size))
    for token in range(num_ahead):
        driver.append("s", [token])
    for was, now in zip(reserved, driver.tables["s"], strict=True):
        assert now in (was, driver.null_block), "A7: a reserved block was exchanged"
