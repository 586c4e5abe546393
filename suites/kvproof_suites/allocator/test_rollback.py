"""Speculation that is rejected leaves no trace."""

from __future__ import annotations

import itertools

import pytest

from kvproof_suites.allocator.capabilities import require
from kvproof_suites.allocator.probes import drain

NUM_BLOCKS = 24


@pytest.fixture(autouse=True)
def _needs_truncate(make_allocator):
    require(make_allocator, "truncate")


@pytest.mark.law("D4")
@pytest.mark.parametrize("num_drafted", [1, 2, 3, 8])
def test_rejected_drafts_leave_the_tables_of_a_run_that_never_speculated(drive, block_size, num_drafted):
    for num_accepted in range(num_drafted + 1):
        speculative, plain = drive(NUM_BLOCKS, block_size), drive(NUM_BLOCKS, block_size)
        for driver in (speculative, plain):
            driver.allocate("s", [1] * (block_size - 1))
        accepted, rejected = [2] * num_accepted, [3] * (num_drafted - num_accepted)
        speculative.append("s", accepted + rejected)
        speculative.truncate("s", block_size - 1 + num_accepted)
        plain.append("s", accepted)
        for driver in (speculative, plain):
            driver.append("s", [4])
        assert len(speculative.tables["s"]) == len(plain.tables["s"]), "D4: rejected tokens left blocks behind"
        assert speculative.num_free() == plain.num_free(), "D4: rejected tokens left blocks behind"


@pytest.mark.law("D4")
def test_a_sequence_can_be_cut_to_nothing_and_to_what_it_is(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", list(range(2 * block_size + 1)))
    driver.truncate("s", 2 * block_size + 1)
    driver.truncate("s", 2 * block_size)
    driver.truncate("s", 1)
    driver.truncate("s", 0)
    assert driver.num_free() == NUM_BLOCKS, "D4: a sequence without tokens holds blocks"
    driver.append("s", [1])


@pytest.mark.law("D4")
def test_room_that_was_reserved_is_given_back_by_a_rollback(drive, make_allocator, block_size):
    require(make_allocator, "reserve")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", [1] * block_size)
    driver.reserve("s", 2 * block_size)
    driver.append("s", [2])
    driver.truncate("s", block_size)


@pytest.mark.law("C1")
@pytest.mark.parametrize("writer", ["parent", "child"])
def test_a_branch_that_is_cut_into_a_shared_block_copies_it_before_writing(drive, make_allocator, block_size, writer):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", list(range(2 * block_size)))
    driver.fork("parent", "child")
    driver.truncate(writer, block_size + block_size // 2)
    driver.append(writer, [7])
    driver.append(writer, [7] * block_size)


@pytest.mark.law("C1")
def test_tokens_written_after_a_rollback_replace_the_rejected_ones(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", list(range(block_size)))
    for token in range(2 * block_size):
        driver.append("s", [token, 9])
        driver.truncate("s", block_size + token + 1)


@pytest.mark.law("A9", "A1", "A2", "D4")
@pytest.mark.parametrize("cuts", [(1,), (1, 1, 1), (2, 1, 2), (1, 5), (3, 3)], ids=str)
def test_cuts_that_meet_inside_a_block_free_it_once(drive, cuts):
    driver = drive(NUM_BLOCKS, 4)
    driver.allocate("s", list(range(15)))
    driver.allocate("other", driver.fresh_tokens(4))
    turns, num_left = itertools.cycle(cuts), 15
    while num_left:
        num_left = max(0, num_left - next(turns))
        driver.truncate("s", num_left)
        drain(driver)
