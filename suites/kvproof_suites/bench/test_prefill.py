"""Prefill: prompts, chunks of them and drafts, several new tokens a sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.timing import PLAYBACK
from kvproof_suites.under_test import KernelUnderTest

GROUP = "prefill"


@pytest.mark.benchmark(timer=PLAYBACK)
def test_prefill(kernel: KernelUnderTest, cell: Cell, row: Callable[[], None]) -> None:
    row()
