"""Time of an allocator's calls, a sequence at a time and the whole step in one, on a pool of 65,536 tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof_suites.bench.cells import HostCell
from kvproof_suites.bench.timing import PLAYBACK
from kvproof_suites.under_test import MakeAllocator

GROUP = "allocator"


@pytest.mark.benchmark(timer=PLAYBACK)
def test_allocator(make_allocator: MakeAllocator, cell: HostCell, row: Callable[[], None]) -> None:
    row()
