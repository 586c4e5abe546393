"""Contests of a session: rows that are compared are timed together, whichever of their tests comes first."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pytest

from kvproof_suites.bench.cells import Cell, HostCell
from kvproof_suites.bench.clocks import Clock
from kvproof_suites.bench.gpu_state import Read
from kvproof_suites.bench.race import Contestant, race
from kvproof_suites.bench.timing import Timing, pinned_threads

Entrant = tuple[str, Any]
"""(implementation, cell)"""


@dataclass(frozen=True)
class NotTimed:
    """Why there is no figure, and what is known instead."""

    reason: str
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    timing: Timing
    figures: Mapping[str, Any]
    """As the record of a run names them."""


@dataclass(frozen=True)
class Ready:
    contestant: Contestant
    figures: Callable[[Mapping[Any, Timing]], Mapping[str, Any]]
    """From the timings of the whole contest, by entrant, to what the record of this one says."""


Prepared = Ready | NotTimed | Exception
Result = Timed | NotTimed | Exception


class Preparation(Protocol):
    """What a group of benchmarks gives: everything of one contest made ready, each in its turn."""

    def prepare(self, entrants: Sequence[Entrant]) -> Iterator[tuple[Entrant, Prepared]]: ...


@dataclass
class Contests:
    """Results of the session so far."""

    preparations: Mapping[str, Preparation]
    """By group."""
    clock: Callable[[str], Clock]
    """By group."""
    read_state: Read
    seconds: float
    """Budget of a row, once it is warm."""
    seed: int
    threads: int | None = None
    """Of the host, for a launch; None: one for each core."""
    results: dict[Entrant, Result] = field(default_factory=dict)

    def result(self, entrant: Entrant, entrants: Sequence[Entrant]) -> Timed | NotTimed:
        """Times the whole contest when its first row is asked for. ``entrants``: of the whole session.

        Raises:
            Exception: what this very implementation raised, or that its output is wrong.
        """
        if entrant not in self.results:
            contest = entrant[1].contest
            self._hold([one for one in entrants if one[1].contest == contest])
        found = self.results[entrant]
        if isinstance(found, Exception):
            raise found
        return found

    def _hold(self, entrants: Sequence[Entrant]) -> None:
        group = entrants[0][1].group
        with pinned_threads(self.threads):  # kernels lay their work out for the threads that there are
            prepared = dict(self.preparations[group].prepare(entrants))
        ready = {entrant: one.contestant for entrant, one in prepared.items() if isinstance(one, Ready)}
        timed = partial(race, seconds=self.seconds, seed=self.seed, threads=self.threads)
        told = timed(ready, self.clock(group), self.read_state) if ready else {}
        timings = {entrant: found for entrant, found in told.items() if isinstance(found, Timing)}
        for entrant, one in prepared.items():
            if not isinstance(one, Ready):
                self.results[entrant] = one
            elif isinstance(found := told[entrant], Timing):
                self.results[entrant] = Timed(found, one.figures(timings))
            else:
                self.results[entrant] = found
        prepared.clear()
        ready.clear()
        gc.collect()


def entrant_of(item: pytest.Item) -> Entrant | None:
    """Of a test that takes part in a contest."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    name, cell = params.get("kernel", params.get("make_allocator")), params.get("cell")
    return (name, cell) if isinstance(name, str) and isinstance(cell, Cell | HostCell) else None


def is_empty(item: pytest.Item) -> bool:
    """Whether the profile has nothing for a test: pytest then gives it a parameter that is none."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    usual: dict[str, tuple[type, ...]] = {"cell": (Cell, HostCell), "share": (float,)}
    return any(name in params and not isinstance(params[name], kinds) for name, kinds in usual.items())


def by_contest(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same tests, those of one contest next to each other: what was measured is soon in the records."""
    contests = [entrant[1].contest if (entrant := entrant_of(item)) else None for item in items]
    place = {contest: i for i, contest in reversed(list(enumerate(contests)))}
    return [items[i] for i in sorted(range(len(items)), key=lambda i: (place[contests[i]], i))]
