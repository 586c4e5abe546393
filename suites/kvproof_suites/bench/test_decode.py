"""Decode: one new token a sequence. Throughput against block size and state of the block table, and the tax of paging:
paged against the same kernel without a table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.timing import PLAYBACK
from kvproof_suites.under_test import KernelUnderTest

GROUP = "decode"


@pytest.mark.benchmark(timer=PLAYBACK)
def test_decode(kernel: KernelUnderTest, cell: Cell, row: Callable[[], None]) -> None:
    row()
