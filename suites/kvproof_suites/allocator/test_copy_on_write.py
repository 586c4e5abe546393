"""Forked sequences share what they have in common, and part where they differ."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from kvproof_suites.allocator.capabilities import require

NUM_BLOCKS = 16
TAILS = ("0", "1", "B-1")
at_each_tail = pytest.mark.parametrize("tail", TAILS)


@pytest.fixture(autouse=True)
def _needs_fork(make_allocator):
    require(make_allocator, "fork")


def prompt(block_size: int, tail: str) -> list[int]:
    """A prompt whose length, modulo the block size, is ``tail``."""
    return list(range(block_size + {"0": 0, "1": 1, "B-1": block_size - 1}[tail]))


@pytest.mark.law("C1")
@at_each_tail
@pytest.mark.parametrize("first", ["parent", "child"])
def test_neither_branch_changes_what_the_other_reads(drive, block_size, tail, first):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", prompt(block_size, tail))
    driver.fork("parent", "child")
    second = "child" if first == "parent" else "parent"
    for token in range(block_size + 1):
        driver.append(first, [100 + token])
        driver.append(second, [200 + token])


@pytest.mark.law("C1")
@at_each_tail
def test_branches_that_write_the_same_token_part_all_the_same(drive, block_size, tail):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", prompt(block_size, tail))
    driver.fork("parent", "child")
    for seq in ("parent", "child"):
        driver.append(seq, [7])
    assert driver.tables["parent"][-1] != driver.tables["child"][-1]


@pytest.mark.law("C1")
@at_each_tail
def test_a_fork_of_a_fork_reads_its_own_history(drive, block_size, tail):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", prompt(block_size, tail))
    driver.fork("a", "b")
    driver.append("b", [1])
    driver.fork("b", "c")
    for order in itertools.permutations("abc"):
        for token, seq in enumerate(order):
            driver.append(seq, [token])
        if driver.num_free() < 4:
            break


@pytest.mark.law("C1")
@at_each_tail
@pytest.mark.parametrize("leaver", ["parent", "child"])
def test_the_branch_that_stays_keeps_its_history_when_the_other_leaves(drive, block_size, tail, leaver):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", prompt(block_size, tail))
    driver.fork("parent", "child")
    driver.append("child", [5])
    driver.free(leaver)
    driver.allocate("stranger", driver.fresh_tokens(2 * block_size))
    driver.append("child" if leaver == "parent" else "parent", [6])


@pytest.mark.law("C1")
@pytest.mark.parametrize("parent", ["a", "b", "c"])
def test_a_branch_continues_the_parent_that_was_named(drive, block_size, parent):
    driver = drive(NUM_BLOCKS, block_size)
    for seq in "abc":
        driver.allocate(seq, driver.fresh_tokens(block_size + 1))
    driver.fork(parent, "child")
    driver.append("child", [1] * block_size)


@pytest.mark.law("C1")
def test_a_chunk_appended_to_a_shared_block_is_copied_before_it_is_written(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size, late=True)
    driver.allocate("parent", prompt(block_size, "1"))
    driver.fork("parent", "child")
    driver.append("child", list(range(2 * block_size)))
    driver.append("parent", list(range(block_size)))
    driver.append("child", [1])


@pytest.mark.law("C2")
@at_each_tail
def test_the_copies_of_many_branches_can_be_made_in_any_order(drive, block_size, tail):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", prompt(block_size, tail))
    for child in "bcd":
        driver.fork("a", child)
    for seq in "dbca":
        driver.append(seq, [1, 2])


@pytest.mark.law("A3")
@pytest.mark.parametrize("leaver", ["parent", "child"])
def test_a_block_that_a_branch_still_holds_is_not_handed_out(drive, block_size, leaver):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", prompt(block_size, "1"))
    driver.fork("parent", "child")
    driver.free(leaver)
    while driver.allocator.can_allocate(block_size):
        driver.allocate(("other", driver.num_free()), driver.fresh_tokens(block_size))


@pytest.mark.law("A1")
@at_each_tail
def test_a_fork_costs_at_most_the_block_that_will_differ(drive, block_size, tail):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", prompt(block_size, tail))
    before = driver.num_free()
    driver.fork("parent", "child")
    assert driver.num_free() >= before - 1, "A1: a fork took more than one block; the others can be shared"


@pytest.mark.law("A6")
@pytest.mark.parametrize("block_size", [2, 3, 16], ids="B={}".format)
def test_a_copy_that_finds_no_block_fails_and_changes_nothing(drive, block_size):
    driver = drive(4, block_size)
    driver.allocate("parent", [1])
    driver.fork("parent", "child")
    driver.allocate("filler", driver.fresh_tokens(driver.num_free() * block_size))
    for seq in ("parent", "child"):
        with contextlib.suppress(MemoryError):  # whoever copied early, or is the last owner, has room
            driver.append(seq, [2])
    driver.free("filler")
    for seq in ("parent", "child"):
        driver.append(seq, [3])


@pytest.mark.law("A6")
def test_the_last_owner_of_a_block_writes_without_a_copy(drive, block_size):
    driver = drive(4, block_size)
    driver.allocate("parent", [1] * block_size + [2])
    driver.fork("parent", "child")
    driver.free("child")
    driver.allocate("filler", driver.fresh_tokens(driver.num_free() * block_size))
    driver.append("parent", [3] * (block_size - 1))
