"""B1 and B2: a cached block has one name, made of every token, its place, its key, and what stands before it."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require, require_wide_tokens
from kvproof_suites.allocator.test_prefix_cache import publish

NUM_BLOCKS = 24
BLOCK_SIZE = 16

LOOK_ALIKES = [
    (("x", "y"), ("x/y",)),
    (("",), ()),
    ((None,), ()),
    ((1,), ("1",)),
    ((("a", "b"),), ("a", "b")),
    (("a", ""), ("a",)),
]
"""Pairs of keys that become one when they are joined, or turned to text."""


@pytest.fixture(autouse=True)
def _needs_a_prefix_cache(make_allocator):
    require(make_allocator, "commit", "cached_prefix")


@pytest.mark.law("B1")
def test_a_prompt_that_differs_in_one_token_is_found_up_to_there(drive):
    tokens = list(range(100, 100 + 2 * BLOCK_SIZE + 1))
    for position in range(2 * BLOCK_SIZE):
        driver = drive(NUM_BLOCKS, BLOCK_SIZE)
        publish(driver, "a", tokens)
        driver.allocate("b", [*tokens[:position], 7, *tokens[position + 1 :]])


@pytest.mark.law("B1")
@pytest.mark.parametrize("distance", [1, 5, 15])
def test_the_order_of_the_tokens_of_a_block_counts(drive, distance):
    driver = drive(NUM_BLOCKS, BLOCK_SIZE)
    tokens = list(range(100, 100 + BLOCK_SIZE + 1))
    publish(driver, "a", tokens)
    tokens[0], tokens[distance] = tokens[distance], tokens[0]
    driver.allocate("b", tokens)


@pytest.mark.law("B1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("x", "y"), ("x/y",)),
        (("",), ()),
        ((None,), ()),
        ((1,), ("1",)),
        ((("a", "b"),), ("a", "b")),
        (("a", ""), ("a",)),
    ],
    ids=str,
)
def test_keys_that_look_alike_are_told_apart(drive, one, other):
    for first, second in ((one, other), (other, one)):
        driver = drive(NUM_BLOCKS, BLOCK_SIZE)
        publish(driver, "a", [1] * (BLOCK_SIZE + 1), first)
        driver.allocate("b", [1] * (BLOCK_SIZE + 1), second)


@pytest.mark.law("B1")
@pytest.mark.parametrize(("one", "other"), [(-1, 2**31 - 1), (-1, 2**32 - 1), (5, 2**32 + 5), (0, -(2**31))])
def test_tokens_that_wrap_to_one_another_are_told_apart(drive, make_allocator, one, other):
    require_wide_tokens(make_allocator, other)
    driver = drive(NUM_BLOCKS, BLOCK_SIZE)
    publish(driver, "a", [one] * (BLOCK_SIZE + 1))
    driver.allocate("b", [other] * (BLOCK_SIZE + 1))


@pytest.mark.law("B2")
def test_a_block_that_was_cut_and_written_anew_has_a_new_name(drive, make_allocator, block_size):
    """What is looked for last starts as the old prompt did and goes on as the new block's successors do."""
    require(make_allocator, "truncate")
    driver = drive(NUM_BLOCKS, block_size)
    old, new, later = ([token] * block_size for token in (2, 3, 4))
    driver.allocate("a", [1] * block_size + old)
    driver.commit("a")
    driver.truncate("a", block_size)
    driver.append("a", new + later)
    driver.commit("a")
    driver.allocate("b", [1] * block_size + old + later + [9])
    driver.allocate("c", [1] * block_size + new + later + [9])


@pytest.mark.law("B2")
@pytest.mark.parametrize(("first", "second"), [("parent", "child"), ("child", "parent")])
def test_branches_that_part_publish_under_names_of_their_own(drive, make_allocator, block_size, first, second):
    """The second branch goes on where the first stopped: that must not be found behind the first's."""
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, block_size)
    prompt, further = [1] * block_size + [7] * (block_size - 1), [4] * block_size
    driver.allocate("parent", prompt)
    driver.fork("parent", "child")
    driver.append(first, [2])
    driver.commit(first)
    driver.append(second, [3, *further])
    driver.commit(second)
    for token in (2, 3):
        driver.allocate(f"after {token}", [*prompt, token, *further, 9])


@pytest.mark.law("B2")
def test_a_list_that_the_caller_goes_on_using_is_not_the_sequences(drive, block_size):
    driver = drive(NUM_BLOCKS, block_size)
    prompt = [1] * (2 * block_size + 1)
    driver.allocator.allocate("a", prompt)
    prompt[:] = [8] * len(prompt)
    driver.allocator.commit("a")
    driver.allocator.free("a")
    assert driver.allocator.cached_prefix([8] * len(prompt)) == 0, "B2: tokens that were never admitted are found"
