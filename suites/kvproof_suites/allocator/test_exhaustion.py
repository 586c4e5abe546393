"""A pool that runs dry: what fails leaves everything as it was, and what is said beforehand is true."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.probes import refused, try_admission

NUM_BLOCKS = 12


def fill(driver) -> list[object]:
    """Admit sequences of one block until nothing more fits."""
    admitted: list[object] = []
    while driver.allocator.can_allocate(driver.block_size):
        admitted.append(("filler", len(admitted)))
        driver.allocate(admitted[-1], driver.fresh_tokens(driver.block_size))
    return admitted


@pytest.mark.law("A6")
def test_a_prompt_that_does_not_fit_takes_nothing_and_leaves_no_trace(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", driver.fresh_tokens(block_size))
    with pytest.raises(MemoryError):
        driver.allocate("b", driver.fresh_tokens(NUM_BLOCKS * block_size))
    refused(driver, KeyError, "block_table", "b")
    refused(driver, KeyError, "free", "b")
    driver.allocate("b", driver.fresh_tokens(block_size))


@pytest.mark.law("A6")
def test_an_append_that_does_not_fit_changes_nothing(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    first, *_ = fill(driver)
    with pytest.raises(MemoryError):
        driver.append(first, driver.fresh_tokens(NUM_BLOCKS * block_size))
    driver.free(("filler", 1))
    driver.append(first, [1])


@pytest.mark.law("A6")
def test_what_failed_works_as_soon_as_there_is_room(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    admitted = fill(driver)
    with pytest.raises(MemoryError):
        driver.allocate("late", driver.fresh_tokens(block_size))
    driver.free(admitted[0])
    driver.allocate("late", driver.fresh_tokens(block_size))


@pytest.mark.law("A6")
@pytest.mark.parametrize("num_live", [0, 1, 2])
@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_can_allocate_is_true_up_to_the_last_slot_and_false_beyond(drive, block_size, num_live, spare):
    driver = drive(NUM_BLOCKS, block_size)
    for seq in range(num_live):
        driver.allocate(seq, driver.fresh_tokens(block_size + 1))
    try_admission(driver, driver.num_free() * block_size + spare)
    try_admission(driver, block_size + spare)


@pytest.mark.law("A6")
def test_a_failure_changes_nothing_that_happens_later(drive, block_size):
    """Two allocators, one of which suffers failures: the same hits, the same evictions, the same end."""

    def story(*, with_failures: bool) -> list[object]:
        driver = drive(NUM_BLOCKS, block_size)
        seen: list[object] = []
        prompts = [[i] * block_size + [9] for i in range(3)]
        for i, tokens in enumerate(prompts):
            driver.allocate(i, tokens)
            if driver.can("commit"):
                driver.commit(i)
            driver.free(i)
        if with_failures:
            for tokens in prompts:
                with pytest.raises(MemoryError):
                    driver.allocate("big", tokens[:-1] + [8] * (NUM_BLOCKS * block_size))
        driver.allocate("pressure", driver.fresh_tokens((NUM_BLOCKS // 4) * block_size))
        for i, tokens in enumerate(prompts):
            try:
                seen.append(driver.allocate(("again", i), tokens))
            except MemoryError:
                seen.append("no room")
            seen.append(driver.num_free())
        return seen

    assert story(with_failures=True) == story(with_failures=False), "A6: failed allocations changed later operations"
