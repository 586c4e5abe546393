"""Prompts and decoding sequences in one launch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.timing import PLAYBACK
from kvproof_suites.under_test import KernelUnderTest

GROUP = "mixed"


@pytest.mark.benchmark(timer=PLAYBACK)
def test_mixed(kernel: KernelUnderTest, cell: Cell, row: Callable[[], None]) -> None:
    row()
