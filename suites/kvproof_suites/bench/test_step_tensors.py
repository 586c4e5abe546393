"""Time until the tensors of a decode step are there: block tables, context lengths, slots."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof_suites.bench.cells import HostCell
from kvproof_suites.bench.timing import PLAYBACK
from kvproof_suites.under_test import MakeAllocator

GROUP = "step_tensors"


@pytest.mark.benchmark(timer=PLAYBACK)
def test_step_tensors(make_allocator: MakeAllocator, cell: HostCell, row: Callable[[], None]) -> None:
    row()
