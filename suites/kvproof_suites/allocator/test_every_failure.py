"""One story in pools of every size: whichever request for blocks is the first to fail, it fails whole.

A pool of n blocks refuses the (n + 1)-th, so that the sizes put the first failure at every place that takes a block:
admission, growth, chunk, copy, look-ahead, step, the way to the host and back.
"""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.probes import drain, release_all
from kvproof_suites.allocator.programs import Step, applies, perform

MOST_BLOCKS = 20


def story(block_size: int) -> list[Step]:
    """Every operation of the contract, most of them where they need a block; prompts share a prefix."""
    prefix = [1] * (2 * block_size)
    return [
        ("allocate", ("a", [*prefix, 2])),
        ("commit", ("a",)),
        ("append", ("a", [3] * block_size)),
        ("fork", ("a", "b")),
        ("append_step", (["b", "a"], [4, 5])),
        ("append", ("b", [6] * (2 * block_size))),
        ("reserve", ("a", block_size + 1)),
        ("allocate", ("c", [*prefix, 7], ("adapter",))),
        ("swap_out", ("b",)),
        ("allocate", ("d", [*prefix, *[8] * block_size])),
        ("append", ("a", [9] * (block_size + 1))),
        ("fork", ("d", "e")),
        ("swap_in", ("b",)),
        ("truncate", ("d", block_size + 1)),
        ("append", ("d", [10] * block_size)),
        ("append_step", (["a", "b", "c", "d", "e"], [11, 12, 13, 14, 15])),
        ("free", ("a",)),
        ("reset_prefix_cache", ()),
        ("allocate", ("f", prefix)),
        ("append_step", (["e", "d"], [16, 17])),
    ]


def tell(driver: Driver, steps: list[Step]) -> int:
    """Perform what is possible of ``steps``; the number that found no room."""
    num_failed = 0
    for name, args in steps:
        is_known = name in ("allocate", "append", "free") or driver.can(name)
        if is_known and applies(driver, (name, args)):
            try:
                perform(driver, (name, args))
            except MemoryError:
                num_failed += 1
    return num_failed


@pytest.mark.law("A6", "A1", "A3", "C1")
@pytest.mark.parametrize("block_size", [1, 2, 3], ids="B={}".format)
def test_whichever_request_for_blocks_fails_changes_nothing(drive, block_size):
    num_failed = [tell(drive(size, block_size), story(block_size)) for size in range(1, MOST_BLOCKS + 1)]
    assert num_failed[0] > 0, "a pool of one block is too small for the story"


@pytest.mark.law("A5", "A2")
@pytest.mark.parametrize("block_size", [1, 3], ids="B={}".format)
def test_after_any_failure_everything_can_be_released(drive, block_size):
    for size in range(1, MOST_BLOCKS + 1):
        driver = drive(size, block_size)
        tell(driver, story(block_size))
        release_all(driver)
        drain(driver)


@pytest.mark.law("A5", "A2")
@pytest.mark.parametrize("late", [False, True], ids=["written", "not written"])
def test_a_request_can_be_aborted_after_every_step(drive, late):
    """The story is broken off after each step in turn, and all requests leave, before or after their writes land."""
    steps = story(2)
    for end in range(1, len(steps) + 1):
        driver = drive(MOST_BLOCKS, 2, late)
        tell(driver, steps[:end])
        release_all(driver)
        drain(driver)
