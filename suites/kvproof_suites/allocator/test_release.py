"""Every exit gives back what was taken, once."""

from __future__ import annotations

import random

import pytest

from kvproof_suites.allocator.capabilities import require
from kvproof_suites.allocator.probes import drain, refused, release_all
from kvproof_suites.allocator.swapping import swap_out

NUM_BLOCKS = 16


@pytest.mark.law("A5")
def test_after_300_requests_every_block_is_free(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    draw = random.Random(300)
    for request in range(300):
        driver.allocate(request, [draw.randrange(3) for _ in range(draw.randrange(2 * block_size + 1))])
        for _ in range(draw.randrange(3)):
            driver.append(request, [draw.randrange(3)])
        if driver.can("commit") and draw.random() < 0.5:
            driver.commit(request)
        if len(driver.live) > 2:
            driver.free(draw.choice(list(driver.live)))
    release_all(driver)


@pytest.mark.law("A5")
@pytest.mark.parametrize("first", ["parent", "child"])
def test_branches_that_leave_one_by_one_release_everything(drive, make_allocator, block_size, first):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", list(range(block_size + 1)))
    driver.fork("parent", "child")
    driver.append("child", [1])
    driver.free(first)
    release_all(driver)


@pytest.mark.law("A5")
def test_a_request_that_is_aborted_before_its_writes_land_releases_everything(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size, late=True)
    driver.allocate("s", list(range(2 * block_size)))
    driver.append("s", [1])
    driver.free("s")
    release_all(driver)


@pytest.mark.law("A5")
def test_blocks_freed_in_a_step_are_reusable_in_the_same_step(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    live = []
    while driver.allocator.can_allocate(2 * block_size):
        live.append(len(live))
        driver.allocate(live[-1], driver.fresh_tokens(2 * block_size))
    for seq in live:
        driver.free(seq)
        assert driver.allocator.can_allocate(2 * block_size), "A5: blocks that were freed can't be handed out again"
        driver.allocate(("next", seq), driver.fresh_tokens(2 * block_size))


@pytest.mark.law("A2")
def test_a_second_free_is_an_error_and_frees_nothing(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", list(range(block_size + 1)))
    driver.allocate("b", [1])
    driver.free("a")
    free = driver.num_free()
    with pytest.raises(KeyError):
        driver.allocator.free("a")
    assert driver.num_free() == free, "A2: a second free changed the number of free blocks"
    drain(driver)


@pytest.mark.law("A2")
def test_what_was_freed_is_handed_out_once(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    for seq in range(3):
        driver.allocate(seq, list(range(block_size + seq)))
    driver.free(1)
    driver.free(0)
    drain(driver)
    driver.free(2)
    drain(driver)


@pytest.mark.law("A2")
@pytest.mark.parametrize("leavers", ["ab", "ba", "a", "b", "abc", "cba"])
def test_what_several_sequences_shared_is_handed_out_once(drive, make_allocator, block_size, leavers):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", list(range(block_size + 1)))
    for child in "bc":
        driver.fork("a", child)
    driver.append("b", [1])
    for seq in leavers:
        driver.free(seq)
    drain(driver)


@pytest.mark.law("A2")
def test_what_was_rolled_back_is_handed_out_once(drive, make_allocator, block_size):
    require(make_allocator, "truncate")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", list(range(3 * block_size)))
    driver.truncate("a", block_size)
    drain(driver)
    driver.free("a")
    drain(driver)


@pytest.mark.law("D5")
@pytest.mark.parametrize("leaver", ["a", "b"])
def test_a_slot_stays_where_it_is_until_its_write_has_landed(drive, block_size, leaver):
    driver = drive(NUM_BLOCKS, block_size, late=True)
    for seq in "ab":
        driver.allocate(seq, [1] * (block_size + 1))
    driver.free(leaver)
    stayer = "b" if leaver == "a" else "a"
    for token in range(block_size):
        driver.append(stayer, [token])
        driver.allocate("passing", [2] * block_size)
        driver.free("passing")


@pytest.mark.law("E5")
def test_an_id_is_unknown_once_it_is_freed_and_can_be_used_again(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", [1])
    driver.free("s")
    for method, args in (("block_table", ()), ("append", ([1],)), ("free", ())):
        refused(driver, KeyError, method, "s", *args)
    driver.allocate("s", [2])


@pytest.mark.law("E5")
def test_sequences_that_end_on_the_host_leave_nothing_behind(drive, make_allocator, block_size):
    """More of them than there are slots: what each leaves in some table runs out, as it does in vLLM's V0."""
    require(make_allocator, "swap_out", "swap_in")
    driver = drive(4, block_size)
    for _ in range(64):
        driver.allocate("s", driver.fresh_tokens(block_size + 1))
        swap_out(driver, "s")
        driver.free("s")
