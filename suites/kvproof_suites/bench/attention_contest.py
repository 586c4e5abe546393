"""Attention in a contest: what can be timed, what its output is held against, and what no cache of results survives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.clocks import Clock
from kvproof_suites.bench.comparison import Cost, breakeven_launches, tax
from kvproof_suites.bench.contests import Entrant, NotTimed, Prepared, Ready
from kvproof_suites.bench.eviction import Evictor, as_given, rotated_bytes
from kvproof_suites.bench.fresh import require_no_kept_results
from kvproof_suites.bench.paged_launches import Launches, launches, num_turns, problem_of
from kvproof_suites.bench.problem import Expected, draw, expect
from kvproof_suites.bench.race import Contestant
from kvproof_suites.bench.tables import Churned
from kvproof_suites.bench.timing import Timing, median_seconds, roof
from kvproof_suites.bench.untimed import told_instead, why_not_timed
from kvproof_suites.kernel.attend import arithmetic
from kvproof_suites.memory import lack_of_room
from kvproof_suites.outcome import LawBroken
from kvproof_suites.under_test import KernelUnderTest


@dataclass
class AttentionContest:
    """Prepares the entrants of one contest after the other; kernels are seen without what the laws put around them."""

    kernels: Mapping[str, KernelUnderTest]
    device: str
    churned: Churned
    seed: int
    clock: Clock
    num_layers: int | None = None
    """Of the model, where there is one."""
    examined: set[Any] = field(default_factory=set)
    """(implementation, point, heads) that were found to compute anew what is asked anew."""

    def prepare(self, entrants: Sequence[Entrant]) -> Iterator[tuple[Entrant, Prepared]]:
        possible = []
        for name, cell in entrants:
            reason = why_not_timed(self.kernels[name], cell)
            if reason is None:
                possible.append((name, cell))
            else:
                yield (name, cell), NotTimed(reason, told_instead(self.kernels[name], cell))
        if self._lack_of_room(possible) is not None:
            draw.cache_clear()  # of the contest before
        if (reason := self._lack_of_room(possible)) is not None:
            yield from ((entrant, NotTimed(reason)) for entrant in possible)
            return
        made: dict[tuple[str, str], tuple[Launches, float]] = {}
        for name, cell in possible:
            try:
                if (name, cell.table) not in made:
                    made[name, cell.table] = self._launches(name, cell)
                launches_made = made[name, cell.table][0]
                yield (name, cell), Ready(self._contestant(name, cell, launches_made), self._figures(name, cell, made))
            except Exception as error:  # of the implementation: its own row tells it
                yield (name, cell), error

    def _lack_of_room(self, entrants: Sequence[Entrant]) -> str | None:
        turns = num_turns(entrants[0][1], self.device) if entrants else 0
        sizes = {(name, cell.table): problem_of(cell).kv_bytes * turns for name, cell in entrants}
        num_bytes = sum(sizes.values()) + 2 * max(sizes.values(), default=0)
        lack = lack_of_room(f"{len(sizes)} pools and their contents", num_bytes, self.device)
        return lack and f"{lack}: name fewer implementations, fewer --tables or a smaller point"

    def _launches(self, name: str, cell: Cell) -> tuple[Launches, float]:
        """Made and examined, and the seconds of a plan: 0 where there is nothing to plan."""
        under_test = self.kernels[name]
        made = launches(under_test, cell, self.churned, self.seed)
        key = (name, cell.point, cell.heads)
        if key not in self.examined:
            contents = draw(problem_of(cell), num_turns(cell, self.device), self.device, self.seed)[0]
            declared = arithmetic(under_test, cell.heads.spec(cell.block_size))
            require_no_kept_results(made.turns[0][0], problem_of(cell), contents, declared, self.clock)
            self.examined.add(key)
        return made, 0.0 if made.plan is None else median_seconds(made.plan, self.device)

    def _contestant(self, name: str, cell: Cell, made: Launches) -> Contestant:
        under_test = self.kernels[name]
        declared = arithmetic(under_test, cell.heads.spec(cell.block_size))
        expected = expect(problem_of(cell), num_turns(cell, self.device), self.device, self.seed, declared)
        turns = made.turns if cell.cache == "cold" else made.turns[:1]
        fills_cache = problem_of(cell).kv_bytes * len(turns) >= rotated_bytes(self.device)
        prepare = as_given if cell.cache == "hot" or fills_cache else Evictor(self.device)
        check = OutputCheck(expected, bitwise="run_bitwise" in under_test.kernel.features)
        return Contestant(made.run, turns, prepare, check, hot=cell.cache == "hot", mode=cell.mode)

    def _figures(
        self, name: str, cell: Cell, made: Mapping[tuple[str, str], tuple[Launches, float]]
    ) -> Callable[[Mapping[Any, Timing]], dict[str, Any]]:
        def figures(timings: Mapping[Any, Timing]) -> dict[str, Any]:
            costs = {
                other: Cost(made[other, cell.table][1], timings[other, cell].median_seconds)
                for other, its_cell in timings
                if its_cell == cell
            }
            own = costs.pop(name)
            told = rates(cell, own.launch_seconds, self.device) | {"tax": tax(timings, name, cell)}
            if cell.table != "dense":
                told |= {"plan_ms": 1e3 * own.plan_seconds, "breakeven_launches": breakeven_launches(own, costs)}
            if self.num_layers is not None:
                told |= {"num_layers": self.num_layers, "step_ms": 1e3 * own.of(self.num_layers)}
            return told

        return figures


class OutputCheck:
    """Holds the first output of a turn against float64, and every later one against what was verified.

    What was checked is overwritten with NaN: a launch that does nothing, and hands out what is there, is seen."""

    def __init__(self, expected: Sequence[Expected], bitwise: bool) -> None:
        self.expected, self.bitwise = expected, bitwise
        self.verified: dict[int, Tensor] = {}

    def __call__(self, place: int, output: Tensor) -> None:
        if self.bitwise and place in self.verified:
            if not torch.equal(output, self.verified[place]):
                raise LawBroken("not timed: a launch in the timed loop gave other bits than the one that was verified")
        else:
            self._require_attention(place, output)
            if self.bitwise:
                self.verified[place] = output.clone()
        output.fill_(math.nan)

    def _require_attention(self, place: int, output: Tensor) -> None:
        distance = self.expected[place].distance(output)
        if distance > 1:
            raise LawBroken(
                f"not timed: the output is {distance:.3g} times its error bound away from dense attention; run the "
                "laws first: they say what was read instead"
            )


def rates(cell: Cell, seconds: float, device: str) -> dict[str, Any]:
    """Decimal units; the roof is what one pass over memory reaches in this very process."""
    problem = problem_of(cell)
    gb_per_second = problem.moved_bytes(None if cell.table == "dense" else cell.block_size) / seconds / 1e9
    ceiling = roof(device).read_gb_per_second
    return {
        "tokens_per_second": cell.point.num_tokens / seconds,
        "gb_per_second": gb_per_second,
        "roof_gb_per_second": ceiling,
        "share_of_roof": gb_per_second / ceiling,
        "num_flops": problem.num_flops,
    }
