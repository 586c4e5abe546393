"""With a sliding window, blocks that nobody sees any more come free, and blocks that somebody sees do not."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require, require_reserved_block, require_window
from kvproof_suites.allocator.probes import drain, release_all

NUM_BLOCKS = 24


@pytest.fixture
def window(make_allocator) -> int:
    return require_window(make_allocator)


@pytest.mark.law("G11", "A3", "A7")
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_every_position_in_the_window_is_read_while_others_take_what_came_free(drive, block_size, window, chunk):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", driver.fresh_tokens(block_size + 1))
    for turn in range((2 * window + 3 * block_size) // chunk + 1):
        driver.append("s", [turn] * chunk)
        guests = [("guest", i) for i in range(driver.num_free())]
        for guest in guests:
            driver.allocate(guest, driver.fresh_tokens(block_size))
        for guest in guests:
            driver.free(guest)


@pytest.mark.law("A3", "G11", "C1")
def test_a_branch_sees_its_window_whatever_the_other_has_left_behind(drive, make_allocator, block_size, window):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("parent", driver.fresh_tokens(window + block_size))
    driver.append("parent", [1])
    driver.fork("parent", "child")
    for token in range(window + block_size):
        driver.append("parent", [token])
    drain(driver)
    for token in range(2):
        driver.append("child", [token])


@pytest.mark.law("A9", "A1", "A2")
def test_a_block_that_left_the_window_is_free_once(drive, block_size, window):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("s", driver.fresh_tokens(1))
    for token in range(window + 3 * block_size):
        driver.append("s", [token])
        if token % 3 == 0:
            drain(driver)
    driver.free("s")
    drain(driver)


@pytest.mark.law("A5")
def test_a_sequence_with_holes_releases_the_rest(drive, block_size, window):
    driver = drive(NUM_BLOCKS, block_size)
    for request in range(3):
        driver.allocate(request, driver.fresh_tokens(window + 2 * block_size))
        driver.append(request, [1])
        driver.append(request, [1] * block_size)
    release_all(driver)


@pytest.mark.law("A4", "A2")
def test_a_reserved_block_is_never_handed_out(drive, make_allocator, block_size):
    require_reserved_block(make_allocator)
    driver = drive(4, block_size)
    for _ in range(3):
        drain(driver)
        driver.allocate("s", driver.fresh_tokens(4 * block_size))
        driver.free("s")
    assert driver.num_free() == 4, "A4: a reserved block is counted as free"


@pytest.mark.law("A4", "A2")
def test_the_null_block_that_stands_for_a_hole_is_not_freed(drive, block_size, window):
    driver = drive(NUM_BLOCKS, block_size)
    for request in range(2):
        driver.allocate(request, driver.fresh_tokens(window + 2 * block_size))
        driver.append(request, [1])
        driver.append(request, [1])
    driver.free(0)
    drain(driver)
    driver.free(1)
    drain(driver)
