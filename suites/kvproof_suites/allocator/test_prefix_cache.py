"""A prefix that is found cached is the right one, complete, computed, and still there."""

from __future__ import annotations

import itertools

import pytest

from kvproof_suites.allocator.capabilities import require

NUM_BLOCKS = 16


@pytest.fixture(autouse=True)
def _needs_a_prefix_cache(make_allocator):
    require(make_allocator, "commit", "cached_prefix")


def publish(driver, seq: object, tokens: list[int], key: tuple[str, ...] = ()) -> None:
    """Compute ``tokens``, make them findable, and leave."""
    driver.allocate(seq, tokens, key)
    driver.commit(seq)
    driver.free(seq)


@pytest.mark.law("B1")
def test_all_prompts_over_two_tokens_are_told_apart(drive):
    """256 prompts of 4 blocks: a hash of a few bits collides many times over."""
    driver = drive(64, 2)
    for text in itertools.product((0, 1), repeat=8):
        publish(driver, "writer", [*text, 0])


@pytest.mark.law("B1")
@pytest.mark.parametrize("high", [1 << 8, 1 << 16, 1 << 30], ids=["bit 8", "bit 16", "bit 30"])
def test_every_bit_of_a_token_counts(drive, block_size, high):
    driver = drive(NUM_BLOCKS, block_size)
    publish(driver, "a", [5] * (2 * block_size + 1))
    publish(driver, "b", [5 + high] * (2 * block_size + 1))


@pytest.mark.law("B1")
@pytest.mark.parametrize(
    "key", [(), ("adapter",), ("adapter", "v2"), ("v1", "adapter"), ("adapterv1",), ("adapte", "rv1")], ids=str
)
def test_a_prefix_is_not_found_under_another_key(drive, block_size, key):
    driver = drive(NUM_BLOCKS, block_size)
    publish(driver, "a", [1] * (block_size + 1), ("adapter", "v1"))
    publish(driver, "b", [1] * (block_size + 1), key)
    assert driver.allocator.cached_prefix([1] * (block_size + 1), ("salt",)) == 0, "B1: found under a key never used"


@pytest.mark.law("B1")
def test_a_block_is_not_found_behind_another_prefix(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    publish(driver, "a", [1] * block_size + [2] * block_size + [0])
    publish(driver, "b", [3] * block_size + [2] * block_size + [0])
    publish(driver, "c", [2] * block_size + [1] * block_size + [0])


@pytest.mark.law("B2")
def test_every_length_of_a_hit_reads_as_if_it_were_computed(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    tokens = list(range(3 * block_size))
    publish(driver, "first", tokens)
    for length in range(len(tokens) + 1):
        driver.allocate("again", [*tokens[:length], 99])
        driver.free("again")


@pytest.mark.law("B2")
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_a_prefix_whose_blocks_went_to_others_is_not_found(drive, block_size, committed):
    driver = drive(4, block_size)
    publish(driver, "old", [1] * (2 * block_size))
    driver.allocate("new", [2] * (4 * block_size))
    if committed:
        driver.commit("new")
    driver.free("new")
    driver.allocate("again", [1] * (2 * block_size))


@pytest.mark.law("B2")
def test_two_sequences_that_computed_the_same_prompt_are_both_right(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size, late=True)
    tokens = [1] * (2 * block_size + 1)
    for seq in "ab":
        driver.allocate(seq, tokens)
    for seq in "ab":
        driver.commit(seq)
    driver.append("a", [2])
    driver.free("b")
    driver.allocate("c", tokens)
    driver.append("c", [3])


@pytest.mark.law("B3")
@pytest.mark.parametrize("length", [(1, 0), (2, 0), (2, 1)], ids=["B", "2B", "2B+1"])
def test_a_prompt_that_is_wholly_cached_leaves_a_token_to_compute(drive, block_size, length):
    driver = drive(NUM_BLOCKS, block_size)
    tokens = [1] * (length[0] * block_size + length[1])
    for attempt in range(3):
        publish(driver, attempt, tokens)
    publish(driver, "extension", tokens + [2] * block_size)


@pytest.mark.law("B4")
def test_nothing_is_found_before_it_is_committed(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size, late=True)
    driver.allocate("a", [1] * (2 * block_size))
    driver.append("a", [1])
    driver.allocate("b", [1] * (2 * block_size + 1))
    driver.commit("a")


@pytest.mark.law("B4")
def test_nothing_is_found_of_a_request_that_was_aborted_before_it_was_computed(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size, late=True)
    driver.allocate("a", [1] * (2 * block_size))
    driver.free("a")
    driver.allocate("b", [1] * (2 * block_size + 1))


@pytest.mark.law("B4")
def test_a_block_that_is_not_full_is_not_found(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    publish(driver, "a", [1] * (2 * block_size - 1))
    driver.allocate("b", [1] * (2 * block_size))


@pytest.mark.law("B5")
def test_what_is_found_is_in_the_pool_after_every_eviction(drive, block_size):
    driver = drive(6, block_size)
    for first in range(8):
        publish(driver, first, [first] * (2 * block_size + 1))


@pytest.mark.law("B5")
def test_a_cached_block_that_is_cut_and_written_anew_is_no_longer_found(drive, make_allocator, block_size):
    require(make_allocator, "truncate")
    driver = drive(NUM_BLOCKS, block_size)
    driver.allocate("a", [1] * (2 * block_size))
    driver.commit("a")
    driver.truncate("a", 2 * block_size - 1)
    driver.append("a", [2])
    driver.commit("a")
    driver.allocate("b", [1] * (2 * block_size + 1))


@pytest.mark.law("B8")
def test_a_prompt_that_is_sent_again_is_found_as_was_foretold(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    tokens = [1] * (2 * block_size + 1)
    publish(driver, "a", tokens)
    foretold = driver.allocator.cached_prefix(tokens)
    assert foretold >= block_size, "B8: a prompt that was just computed is not found at all"
    assert driver.allocate("b", tokens) == foretold, "B8: cached_prefix and allocate differ"


@pytest.mark.law("B8")
def test_prompts_that_have_nothing_in_common_are_no_hits(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    for seq in range(5):
        publish(driver, seq, tokens := driver.fresh_tokens(2 * block_size + 1))
        assert driver.allocator.cached_prefix([tokens[0] + 10_000] * len(tokens)) == 0, "B8: a hit without a resend"


@pytest.mark.law("B9")
@pytest.mark.parametrize("still_live", [False, True], ids=["freed", "live"])
def test_after_a_reset_nothing_from_before_is_found(drive, make_allocator, block_size, still_live):
    require(make_allocator, "reset_prefix_cache")
    driver = drive(NUM_BLOCKS, block_size)
    tokens = [1] * (2 * block_size + 1)
    driver.allocate("a", tokens)
    driver.commit("a")
    if not still_live:
        driver.free("a")
    driver.reset_prefix_cache()
    driver.allocate("b", tokens)
    if still_live:
        driver.append("a", [1] * block_size)
        driver.commit("a")  # computed with what the reset invalidated
        driver.allocate("c", [1] * (3 * block_size + 1))


@pytest.mark.law("A1")
def test_a_block_that_is_cached_for_nobody_counts_as_free(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    publish(driver, "a", [1] * (2 * block_size + 1))
    driver.allocate("b", [1] * (2 * block_size + 1))
    driver.free("b")


@pytest.mark.law("A3")
def test_a_block_that_was_found_cached_is_not_handed_out_under_its_reader(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    publish(driver, "a", [1] * (2 * block_size + 1))
    driver.allocate("reader", [1] * (2 * block_size + 1))
    while driver.allocator.can_allocate(block_size):
        driver.allocate(("other", len(driver.live)), driver.fresh_tokens(block_size))


@pytest.mark.law("A3")
def test_a_prefix_that_two_compute_at_once_stays_with_both(drive, block_size):
    """The second to commit finds its blocks published already, and its table still names them."""
    driver = drive(NUM_BLOCKS, block_size)
    for seq in "ab":
        driver.allocate(seq, [1] * (2 * block_size + 1))
    for seq in "ab":
        driver.commit(seq)
        driver.append(seq, [7])
    # All that counts as free: whoever hands out in the order of release comes to b's blocks last.
    driver.allocate("c", driver.fresh_tokens(driver.num_free() * block_size))
