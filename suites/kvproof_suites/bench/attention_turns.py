"""``python -m kvproof_suites.bench.attention_turns NAME``: one kernel's part in attention_side_by_side, or the roof's.

It runs wherever kvproof imports. A kernel is prepared, judged and timed as in a contest of ``--bench``; whose turn it
is, another process says.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any

import torch

from kvproof_impls.registry import ImplementationError, load
from kvproof_suites.bench.attention_contest import AttentionContest
from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.clocks import HostClock, undisturbed
from kvproof_suites.bench.contests import NotTimed, Ready
from kvproof_suites.bench.heads import parse_heads
from kvproof_suites.bench.points import parse_point
from kvproof_suites.bench.problem import draw
from kvproof_suites.bench.race import Runner
from kvproof_suites.bench.timing import ROOF_BYTES, pinned_threads, stopwatch
from kvproof_suites.bench.turn_taker import Told, bare, say, serve
from kvproof_suites.bench.unchecked import unchecked
from kvproof_suites.under_test import KernelUnderTest

ROOF = "roof"
PAGED, DENSE = TABLES = ("shuffled", "dense")
NO_REPLAY: Any = None
"""Of these tables none is the work of an allocator."""


@dataclass(frozen=True)
class Step:
    """What kernels take side by side, by the names of a benchmark."""

    point: str
    heads: str
    head_dim: int
    dtype: str
    block_size: int

    def cell(self, table: str) -> Cell:
        """
        Raises:
            ValueError: a point, heads or a type that means nothing.
        """
        point, heads = parse_point(self.point), parse_heads(self.heads, self.head_dim, self.dtype, None, "cpu")
        return Cell(point.kind, point, heads, self.block_size, table)


class Turns:
    """A kernel that is told a step, and then takes a sample of one of its tables whenever it is asked."""

    def __init__(self, under_test: KernelUnderTest) -> None:
        self.under_test, self.clock = under_test, HostClock()
        kernels = {under_test.name: under_test}
        self.contest = AttentionContest(kernels, under_test.device, NO_REPLAY, seed=0, clock=self.clock)
        self.runners: dict[str, Runner] = {}

    def __call__(self, request: Told) -> Told:
        return self.prepare(Step(**request["step"])) if "step" in request else self.sample(request["table"])

    def prepare(self, step: Step) -> Told:
        """By table, why it can't be timed, or None."""
        self.runners.clear()
        gc.collect()
        name = self.under_test.name
        tables = TABLES if hasattr(self.under_test.kernel, "dense") else (PAGED,)
        prepared = list(self.contest.prepare([(name, step.cell(table)) for table in tables]))
        reasons = {cell.table: self.enter(cell.table, found) for (_, cell), found in prepared}
        draw.cache_clear()  # what was drawn now lies in the pools, and others need the memory
        return {"tables": {table: reasons[table] for table in tables}}

    def enter(self, table: str, found: Any) -> str | None:
        try:
            if isinstance(found, Exception):
                raise found
            if isinstance(found, Ready):
                self.runners[table] = Runner(found.contestant, self.clock)
        except Exception as error:
            return bare(self.under_test.name, error)
        return found.reason if isinstance(found, NotTimed) else None

    def sample(self, table: str) -> Told:
        try:
            self.runners[table].sample()
        except Exception as error:
            return {"reason": bare(self.under_test.name, error)}
        return {"seconds": self.runners[table].samples[-1]}


def main(name: str) -> None:
    with pinned_threads(), undisturbed():
        if name == ROOF:
            source = torch.ones(ROOF_BYTES // 4)
            source.sum()
            serve({}, lambda request: {"seconds": stopwatch(source.sum)})
            return
        try:
            found = load(name)
            if found.kernel is None:
                raise ImplementationError(f"{name} has no kernel")
        except ImplementationError as error:
            say({"reason": bare(name, error)})
            return
        with unchecked([found.kernel]):
            about = {"version": found.version, "torch": torch.__version__}
            serve(about, Turns(KernelUnderTest(name, found.kernel, "cpu")))


if __name__ == "__main__":
    main(sys.argv[1])
