"""Figures that need the other rows of a contest: the tax of paging, and the launches after which a plan pays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.timing import Timing


@dataclass(frozen=True)
class Cost:
    plan_seconds: float
    launch_seconds: float

    def of(self, num_launches: int) -> float:
        return self.plan_seconds + num_launches * self.launch_seconds


def tax(timings: Mapping[tuple[str, Cell], Timing], implementation: str, cell: Cell) -> float | None:
    """t_paged ÷ t_dense − 1 against the same kernel without a table, from the turns of one race; None without one."""
    dense = timings.get((implementation, replace(cell, table="dense")))
    if cell.table == "dense" or dense is None:
        return None
    return timings[implementation, cell].median_seconds / dense.median_seconds - 1


def breakeven_launches(own: Cost, others: Mapping[str, Cost]) -> int | None:
    """Launches of one plan from which on ``own`` is no dearer than whichever of ``others`` is cheapest for a single
    launch: 1 where it is the cheapest itself, None where it never gets there, or stands alone."""
    if not others:
        return None
    first = min(others.values(), key=lambda cost: cost.of(1))
    if own.of(1) <= first.of(1):
        return 1
    saved = first.launch_seconds - own.launch_seconds
    return math.ceil((own.plan_seconds - first.plan_seconds) / saved) if saved > 0 else None
