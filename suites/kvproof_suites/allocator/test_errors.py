"""What the contract forbids is an error, of the right kind, and changes nothing."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require
from kvproof_suites.allocator.probes import UNKNOWN, refused, violations

NUM_BLOCKS = 8
NUM_TOKENS = 5


@pytest.mark.law("E5")
@pytest.mark.parametrize("method", UNKNOWN)
def test_an_unknown_id_is_a_key_error(drive, make_allocator, method):
    require(make_allocator, method)
    driver = drive(NUM_BLOCKS, 4)
    driver.allocate("s", [1] * NUM_TOKENS)
    refused(driver, KeyError, method, "ghost", *UNKNOWN[method])


@pytest.mark.law("E5")
@pytest.mark.parametrize("num_tokens", [0, 1, 4])
def test_an_id_that_is_live_can_not_be_allocated_again(drive, num_tokens):
    driver = drive(NUM_BLOCKS, 4)
    driver.allocate("s", [1] * NUM_TOKENS)
    refused(driver, KeyError, "allocate", "s", [1] * num_tokens)


@pytest.mark.law("E5")
def test_a_fork_onto_a_live_id_is_a_key_error(drive, make_allocator):
    require(make_allocator, "fork")
    driver = drive(NUM_BLOCKS, 4)
    driver.allocate("a", [1])
    driver.allocate("b", [2])
    for child in "ab":
        refused(driver, KeyError, "fork", "a", child)


@pytest.mark.law("E5")
@pytest.mark.parametrize("method", ["can_allocate", "reserve", "truncate"])
def test_an_impossible_number_is_a_value_error(drive, make_allocator, method):
    require(make_allocator, method)
    driver = drive(NUM_BLOCKS, 4)
    driver.allocate("s", [1] * NUM_TOKENS)
    bad = [(name, args) for error, name, args in violations("s", NUM_TOKENS) if error is ValueError and name == method]
    assert bad
    for name, args in bad:
        refused(driver, ValueError, name, *args)


@pytest.mark.law("E5")
@pytest.mark.parametrize(("num_blocks", "block_size"), [(-1, 16), (4, 0), (4, -16)])
def test_a_pool_of_an_impossible_shape_is_a_value_error(make_allocator, num_blocks, block_size):
    with pytest.raises(ValueError):  # noqa: PT011 - the wording is the implementation's own
        make_allocator(num_blocks, block_size)
