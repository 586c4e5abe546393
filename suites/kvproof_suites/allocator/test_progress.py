"""Whatever fits alone ends, however many others want the pool; what can never fit is refused, and nothing else."""

from __future__ import annotations

import pytest

from kvproof_suites.allocator.capabilities import require
from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.invariants import reserves_ahead
from kvproof_suites.allocator.serving import Request, Serving

LOADS = {
    "one that takes the whole pool": [(1, 7)],
    "two that take the whole pool": [(1, 7), (1, 7)],
    "prompts that end on a boundary": [(2, 2), (2, 2), (2, 2), (2, 2)],
    "a long one among short ones": [(1, 1), (1, 6), (1, 1), (2, 1), (1, 2)],
    "a large one behind a small one": [(1, 3), (6, 2)],
    "more prompts than fit": [(4, 1), (4, 1), (4, 1)],
}
NUM_BLOCKS = 8


def requests(load: list[tuple[int, int]], block_size: int) -> list[Request]:
    return [Request(f"r{i}", prompt * block_size, output * block_size) for i, (prompt, output) in enumerate(load)]


def room_for(driver: Driver, num_tokens: int) -> bool:
    """Whether the empty pool holds a request of ``num_tokens``: by count, or as the allocator says that reserves."""
    if reserves_ahead(driver):
        return bool(driver.ask("can_allocate", num_tokens))
    return driver.blocks_for(num_tokens) <= driver.allocator.num_blocks


@pytest.fixture(params=["computed anew", "swapped"])
def swaps(request, make_allocator) -> bool:
    if request.param == "swapped":
        require(make_allocator, "swap_out", "swap_in")
    return request.param == "swapped"


@pytest.mark.law("D3")
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("block_size", [1, 3], ids="B={}".format)
def test_every_request_that_fits_alone_ends(drive, block_size, load, swaps):
    driver = drive(NUM_BLOCKS, block_size)
    fitting = [r for r in requests(load, block_size) if room_for(driver, r.num_prompt + r.num_output)]
    serving = Serving(driver, swaps)
    serving.serve(fitting)
    assert serving.refused == [], f"D3: {serving.refused} were refused by an empty pool that has room for them"


@pytest.mark.law("D3")
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_request_that_is_larger_than_the_pool_is_refused_alone(drive, block_size, num_blocks):
    driver = drive(num_blocks, block_size)
    small = Request("small", block_size - 1, 1)
    serving = Serving(driver, swaps=False)
    serving.serve([small, Request("giant", num_blocks * block_size + 1, 1), small._replace(name="after")])
    assert serving.refused == ["giant"], f"D3: {serving.refused} were refused; only 'giant' can never fit"
