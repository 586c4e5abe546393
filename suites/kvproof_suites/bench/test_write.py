"""Keys and values of a step's new tokens, written into their slots."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.timing import PLAYBACK
from kvproof_suites.under_test import KernelUnderTest

GROUP = "write"


@pytest.mark.benchmark(timer=PLAYBACK)
def test_write(kernel: KernelUnderTest, cell: Cell, row: Callable[[], None]) -> None:
    row()
