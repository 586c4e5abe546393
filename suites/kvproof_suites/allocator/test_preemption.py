"""A sequence that has to make way comes back as it was: from the host, or computed anew."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require, require_counters
from kvproof_suites.allocator.probes import refused, release_all
from kvproof_suites.allocator.swapping import swap_in, swap_out

NUM_BLOCKS = 24
TAILS = ("0", "1", "B-1")
at_each_tail = pytest.mark.parametrize("tail", TAILS)
swaps = pytest.mark.usefixtures("needs_swap")


@pytest.fixture
def needs_swap(make_allocator):
    require(make_allocator, "swap_out", "swap_in")


def prompt(block_size: int, tail: str) -> list[int]:
    """A prompt of three blocks, the last one filled as ``tail`` says."""
    return list(range(2 * block_size + {"0": block_size, "1": 1, "B-1": block_size - 1}[tail]))


def occupy(driver) -> None:
    """Others take the blocks that were given up, write into them, and leave."""
    guests: list[object] = []
    while driver.allocator.can_allocate(driver.block_size):
        guests.append(("guest", len(guests)))
        driver.allocate(guests[-1], driver.fresh_tokens(driver.block_size))
    for guest in guests:
        driver.free(guest)


@swaps
@pytest.mark.law("D1", "A7")
@at_each_tail
def test_a_sequence_comes_back_from_the_host_as_it_was(drive, block_size, tail):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", prompt(block_size, tail))
    for token in range(block_size + 1):
        driver.append("s", [token])
        swap_out(driver, "s")
        occupy(driver)
        swap_in(driver, "s")


@pytest.mark.law("D1", "A7")
@at_each_tail
@pytest.mark.parametrize("committed", [False, True], ids=["not committed", "committed"])
def test_a_sequence_that_is_computed_anew_is_as_it_was(drive, block_size, tail, committed):
    driver = drive(NUM_BLOCKS, block_size)
    tokens = prompt(block_size, tail)
    driver.allocate("s", tokens)
    for token in range(block_size + 1):
        driver.append("s", [token])
        tokens.append(token)
        if committed and driver.can("commit"):
            driver.commit("s")
        driver.free("s")
        if token % 2:
            occupy(driver)
        driver.allocate("s", tokens)


@swaps
@pytest.mark.law("D1", "A1")
@at_each_tail
@pytest.mark.parametrize("num_ahead", [1, 8])
def test_look_ahead_is_not_taken_for_the_sequence(drive, make_allocator, block_size, tail, num_ahead):
    require(make_allocator, "reserve")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", prompt(block_size, tail))
    driver.reserve("s", num_ahead * block_size)
    swap_out(driver, "s")
    occupy(driver)
    swap_in(driver, "s")
    driver.append("s", [1])


@swaps
@pytest.mark.law("A3", "D1", "C1")
@pytest.mark.parametrize("leaver", ["parent", "child"])
def test_a_branch_that_is_swapped_out_leaves_the_other_alone(drive, make_allocator, block_size, leaver):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", prompt(block_size, "1"))
    driver.fork("parent", "child")
    swap_out(driver, leaver)
    stayer = "child" if leaver == "parent" else "parent"
    driver.append(stayer, [1] * block_size)
    occupy(driver)
    swap_in(driver, leaver)
    driver.append(leaver, [2] * block_size)


@swaps
@pytest.mark.law("C2", "D1")
def test_sequences_on_the_host_do_not_overwrite_one_another(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    for seq in "abc":
        driver.allocate(seq, driver.fresh_tokens(2 * block_size + 1))
        swap_out(driver, seq)
    swap_in(driver, "b")
    driver.append("b", [1] * block_size)
    swap_out(driver, "b")
    for seq in "cab":
        swap_in(driver, seq)


@swaps
@pytest.mark.law("A6", "A1")
def test_the_host_takes_as_many_blocks_as_it_has_and_gives_them_back(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    num_host = driver.allocator.num_host_blocks
    driver.allocate("s", driver.fresh_tokens(block_size + 1))
    for _ in range(num_host + 1):
        swap_out(driver, "s")
        swap_in(driver, "s")
    for _ in range(num_host + 1):
        swap_out(driver, "s")
        driver.free("s")
        driver.allocate("s", driver.fresh_tokens(block_size + 1))


@swaps
@pytest.mark.law("A6")
def test_a_swap_that_finds_no_room_fails_and_changes_nothing(drive, block_size):
    driver = drive(4, block_size)
    driver.allocate("s", driver.fresh_tokens(2 * block_size))
    swap_out(driver, "s")
    driver.allocate("other", driver.fresh_tokens(3 * block_size))
    with pytest.raises(MemoryError):
        swap_in(driver, "s")
    driver.free("other")
    swap_in(driver, "s")
    driver.append("s", [1])


@swaps
@pytest.mark.law("A6")
def test_a_host_that_is_full_refuses_and_changes_nothing(drive, make_allocator, block_size):
    require(make_allocator, "fork")
    driver = drive(6, block_size)
    num_host = driver.allocator.num_host_blocks
    driver.allocate(0, driver.fresh_tokens(5 * block_size))
    branches = range(num_host // 5 + 1)
    for branch in branches[1:]:
        driver.fork(0, branch)
    for branch in branches:
        try:
            swap_out(driver, branch)
        except MemoryError:
            driver.append(branch, [1])
            driver.free(branch)
    for branch in list(driver.swapped):
        swap_in(driver, branch)
        driver.append(branch, [1])
        driver.free(branch)
    driver.allocate("all", driver.fresh_tokens(min(6, num_host) * block_size))
    swap_out(driver, "all")


@swaps
@pytest.mark.law("A5")
@pytest.mark.parametrize("when", ["out", "in", "out again"])
def test_a_request_that_is_aborted_while_it_is_swapped_releases_everything(drive, block_size, when):
    driver = drive(NUM_BLOCKS, block_size)
    for request in range(1 + driver.allocator.num_host_blocks):
        driver.allocate(request, driver.fresh_tokens(block_size + 1))
        swap_out(driver, request)
        if when != "out":
            swap_in(driver, request)
        if when == "out again":
            swap_out(driver, request)
        driver.free(request)
    release_all(driver)


@swaps
@pytest.mark.law("B9")
def test_what_was_on_the_host_during_a_reset_is_not_found_afterwards(drive, make_allocator, block_size):
    require(make_allocator, "reset_prefix_cache")
    driver = drive(NUM_BLOCKS, block_size)
    tokens = [1] * (2 * block_size + 1)
    driver.allocate("s", tokens)
    driver.commit("s")
    swap_out(driver, "s")
    driver.reset_prefix_cache()
    swap_in(driver, "s")
    driver.append("s", [1] * block_size)
    driver.commit("s")
    driver.allocate("t", tokens)


@swaps
@pytest.mark.law("E5")
def test_a_swap_of_what_is_not_there_is_a_key_error(drive):
    driver = drive(NUM_BLOCKS, 4)
    driver.allocate("s", [1] * 5)
    refused(driver, KeyError, "swap_in", "s")
    swap_out(driver, "s")
    refused(driver, KeyError, "swap_out", "s")
    refused(driver, KeyError, "allocate", "s", [1])
    swap_in(driver, "s")
    refused(driver, KeyError, "swap_in", "s")


@pytest.mark.law("A5", "D1")
@at_each_tail
def test_a_preempted_sequence_holds_nothing_and_comes_back_under_its_id(drive, make_allocator, block_size, tail):
    require(make_allocator, "preempt")
    driver = drive(NUM_BLOCKS, block_size)
    tokens = prompt(block_size, tail)
    for _ in range(3):
        driver.allocate("s", tokens)
        driver.append("s", [1])
        tokens.append(1)
        driver.preempt("s")
        driver.require("A5", driver.num_free() == NUM_BLOCKS, "a preempted sequence holds blocks")
        occupy(driver)
    release_all(driver)


@pytest.mark.law("E5")
def test_what_is_not_live_is_not_preempted(drive, make_allocator, block_size):
    require(make_allocator, "preempt")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", prompt(block_size, "1"))
    refused(driver, KeyError, "preempt", "nobody")
    driver.preempt("s")
    refused(driver, KeyError, "preempt", "s")


@pytest.mark.law("B8")
def test_what_is_found_after_a_preemption_is_counted_apart_from_hits(drive, make_allocator, block_size):
    require(make_allocator, "preempt", "commit")
    require_counters(make_allocator)
    driver = drive(NUM_BLOCKS, block_size)
    tokens = prompt(block_size, "1")
    driver.allocate("s", tokens)
    driver.commit("s")
    driver.preempt("s")
    found = driver.allocate("s", tokens)
    counted = driver.allocator.counters
    told = (counted.num_prompt_tokens, counted.num_hit_tokens, counted.num_readmitted_hit_tokens)
    want = (len(tokens), 0, found)
    driver.require("B8", told == want, f"prompt, hit and readmitted hit tokens are counted as {told}; they are {want}")
