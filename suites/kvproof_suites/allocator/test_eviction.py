"""Which cached prefix makes way: for allocators that declare ``eviction = "lru"``; others may choose otherwise."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from kvproof_suites.allocator.capabilities import require
from kvproof_suites.outcome import refuse


@pytest.fixture(autouse=True)
def _declares_lru(make_allocator):
    require(make_allocator, "commit", "cached_prefix")
    declared = getattr(make_allocator(4, 4), "eviction", None)
    if declared != "lru":
        refuse(f"{make_allocator.name} declares no eviction order")


def publish(driver, seq: object, tokens: list[int]) -> None:
    driver.allocate(seq, tokens)
    driver.commit(seq)
    driver.free(seq)


def found(driver, tokens: list[int]) -> int:
    return driver.allocator.cached_prefix([*tokens, 0])


@pytest.mark.law("A8")
def test_blocks_without_content_go_before_cached_ones(drive, block_size):
    driver = drive(4, block_size)
    tokens = [1] * (2 * block_size)
    publish(driver, "a", tokens)
    driver.allocate("partial", driver.fresh_tokens(2 * block_size))
    driver.free("partial")  # never committed: worth nothing, though it was freed last
    driver.allocate("b", driver.fresh_tokens(2 * block_size))
    assert found(driver, tokens) == 2 * block_size, "A8: a cached block was given away while empty ones were free"


@pytest.mark.law("A8")
def test_a_prefix_is_given_up_from_its_end(drive, block_size):
    driver = drive(4, block_size)
    tokens = [token for token in range(4) for _ in range(block_size)]
    publish(driver, "a", tokens)
    for num_left in (3, 2, 1, 0):
        driver.allocate(num_left, driver.fresh_tokens(block_size))
        left = found(driver, tokens)
        assert left == num_left * block_size, f"A8: {left} tokens are found, {num_left} blocks should be left"


@pytest.mark.law("A8")
@pytest.mark.parametrize("block_size", [2, 16], ids="B={}".format)  # of one token there is no partial last block
def test_the_prefix_that_was_used_longest_ago_goes_first_whatever_the_order_of_admission(drive, block_size):
    """One-block prefixes under pressure, against a model that is nothing but an ordered dictionary."""
    num_blocks, draw = 6, random.Random(8)
    driver, model = drive(num_blocks, block_size), OrderedDict[int, None]()
    for turn in range(40):
        text = draw.randrange(5)
        prompt = [text] * block_size + [9]
        num_wanted = 1 if text in model else 2
        model.pop(text, None)
        while num_blocks - len(model) - (num_wanted == 1) < num_wanted:
            model.popitem(last=False)
        publish(driver, turn, prompt)
        model[text] = None
        if draw.random() < 0.3:
            num_pressure = draw.randrange(1, num_blocks)
            driver.allocate("pressure", driver.fresh_tokens(num_pressure * block_size))
            driver.free("pressure")
            while num_blocks - len(model) < num_pressure:
                model.popitem(last=False)
        cached = {text for text in range(5) if found(driver, [text] * block_size)}
        assert cached == set(model), f"A8: after turn {turn} the prefixes {cached} are cached; LRU keeps {set(model)}"
