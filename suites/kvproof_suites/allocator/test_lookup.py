"""Between a look-up and the admission that it was made for, anything may happen to the blocks that it found."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require

HIT = ("B2", "B4", "B9", "A3", "C1")
"""What a wrong hit may be called; all of it counts here."""


@pytest.fixture(autouse=True)
def _needs_a_prefix_cache(make_allocator):
    require(make_allocator, "commit", "cached_prefix")


def publish(driver, seq: object, tokens: list[int]) -> None:
    driver.allocate(seq, tokens)
    driver.commit(seq)
    driver.free(seq)


def text(token: int, num_blocks: int, block_size: int) -> list[int]:
    return [token] * (num_blocks * block_size)


@pytest.mark.law("B6", *HIT)
@pytest.mark.parametrize("num_taken", [3, 4])
def test_blocks_that_went_to_others_since_the_look_up_are_not_used(drive, block_size, num_taken):
    driver = drive(4, block_size)
    prompt = [*text(1, 2, block_size), 7]
    publish(driver, "a", prompt)
    driver.allocator.cached_prefix(prompt)
    driver.allocate("others", driver.fresh_tokens(num_taken * block_size))
    driver.free("others")
    driver.allocate("b", prompt)


@pytest.mark.law("B6", *HIT)
def test_a_reset_between_look_up_and_admission_is_total(drive, make_allocator, block_size):
    require(make_allocator, "reset_prefix_cache")
    driver = drive(8, block_size)
    prompt = [*text(1, 2, block_size), 7]
    publish(driver, "a", prompt)
    driver.allocator.cached_prefix(prompt)
    driver.reset_prefix_cache()
    driver.allocate("b", prompt)


@pytest.mark.law("B6", *HIT)
def test_fresh_blocks_are_never_the_ones_that_were_found(drive, block_size):
    """The found prefix is the next to be evicted, and the admission needs an eviction."""
    driver = drive(6, block_size)
    found = text(1, 3, block_size)
    publish(driver, "a", found)
    publish(driver, "b", text(2, 2, block_size))
    driver.allocate("c", [*found, *text(3, 2, block_size)])


@pytest.mark.law("B6", "A6", *HIT)
def test_blocks_that_were_found_are_not_counted_as_room_for_the_rest(drive, block_size):
    driver = drive(6, block_size)
    found = text(1, 3, block_size)
    publish(driver, "a", found)
    driver.allocate("filler", driver.fresh_tokens(2 * block_size))
    with pytest.raises(MemoryError):
        driver.allocate("b", [*found, *text(3, 2, block_size)])
    driver.allocate("b", [*found, *text(3, 1, block_size)])


@pytest.mark.law("B6", *HIT)
def test_a_look_up_holds_on_to_nothing(drive, block_size):
    """A request that is given up after its look-up has nothing to release."""
    driver = drive(4, block_size)
    prompt = [*text(1, 3, block_size), 7]
    publish(driver, "a", prompt)
    for _ in range(5):
        driver.allocator.cached_prefix(prompt)
    assert driver.num_free() == 4, "B6: a look-up took blocks"
    driver.allocate("b", driver.fresh_tokens(4 * block_size))
