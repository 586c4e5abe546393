"""What the directed laws share: a driver that enforces the test's own law, and the block sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.history import HISTORY

Drive = Callable[..., Driver]


@pytest.fixture
def drive(make_allocator: Any, request: pytest.FixtureRequest) -> Drive:
    """``drive(num_blocks, block_size, late=False)``: a fresh allocator, judged by the law that the test names."""
    marker = request.node.get_closest_marker("law")

    def build(num_blocks: int, block_size: int, late: bool = False) -> Driver:
        driver = Driver(make_allocator(num_blocks, block_size), marker.args, late)
        request.node.stash[HISTORY] = driver.history
        return driver

    return build


@pytest.fixture(params=(1, 2, 3, 16), ids="B={}".format)
def block_size(request: pytest.FixtureRequest) -> int:
    return request.param
