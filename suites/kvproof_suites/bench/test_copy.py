"""Whole blocks, copied from one place of the pool to another: copy-on-write, swapping, defragmentation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.timing import PLAYBACK
from kvproof_suites.under_test import KernelUnderTest

GROUP = "copy"


@pytest.mark.benchmark(timer=PLAYBACK)
def test_copy(kernel: KernelUnderTest, cell: Cell, row: Callable[[], None]) -> None:
    row()
