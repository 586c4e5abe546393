"""Implementations that are compared run in one process and take turns in random order, so that whatever the machine
does meanwhile meets all of them; what they return inside the timed loop is checked, off the clock."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from kvproof_reports.samples import is_calm
from kvproof_suites.bench.clocks import Call, Clock, HostClock, undisturbed
from kvproof_suites.bench.gpu_state import GpuState, Read, summarize
from kvproof_suites.bench.timing import FEWEST_SAMPLES, Timing, enough, pinned_threads
from kvproof_suites.bench.waiting import Watched, on_core, watch

MOST_TURNS = 8
"""Of a quick contestant, while the slowest takes one."""
PATIENCE = 4
"""Times its budget that a contestant may spend on a busy machine until FEWEST_SAMPLES were calm."""
STATE_EVERY_SECONDS = 0.05
"""Between two readings of the GPU's state, each of which takes some of this."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Contestant:
    """What is timed: one call on the next of ``inputs``."""

    call: Call
    inputs: Sequence[Any]
    prepare: Callable[[Any], Any] = lambda given: given
    """From an input to what the call is given; not timed."""
    check: Callable[[int, Any], None] = lambda place, result: None
    """Given the place of the input and what the call returned; raises where that is wrong. Not timed."""
    hot: bool = False
    """The same input was read just before; else it has left the cache since its last turn."""
    mode: str = "eager"


class Runner:
    """A contestant that is warmed up, and the samples that it has given so far."""

    def __init__(self, contestant: Contestant, clock: Clock) -> None:
        """Compilation, allocation and first touch are over after this, and every output has been checked once."""
        self.contestant, self.clock, self.by_host = contestant, clock, isinstance(clock, HostClock)
        self.samples: list[float] = []
        self.calm: list[float] = []
        """Those in which this thread hardly waited for a core. Only they count for whether there are enough."""
        self.watched: list[Watched] = []
        for place, given in enumerate(contestant.inputs):
            contestant.check(place, contestant.call(contestant.prepare(given)))
        captured = contestant.mode == "graph"
        self.call = clock.replays(contestant.call, contestant.inputs) if captured else contestant.call
        self.by_place = captured
        self.spent_seconds = 0.0

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.samples) if self.samples else 1.0

    @property
    def waited(self) -> float | None:
        """Share of a sample in which a thread waited for a core, the median of them."""
        waits = [(one.longest_wait, taken) for one, taken in zip(self.watched, self.samples, strict=True)]
        shares = [min(1.0, wait / taken) for wait, taken in waits if wait is not None]
        return statistics.median(shares) if shares else None

    def timing(self, about: Mapping[str, Any] | None) -> Timing:
        """``about``: the state of the GPU meanwhile. A thread can't wait through time of a GPU."""
        core = on_core(self.samples, self.watched) if self.by_host else None
        return Timing(tuple(self.samples), about, self.waited, core, torch.get_num_threads())

    def is_done(self, seconds: float) -> bool:
        budget = seconds if len(self.calm) >= FEWEST_SAMPLES else PATIENCE * seconds
        return enough(self.calm) or (self.spent_seconds >= budget and len(self.samples) >= FEWEST_SAMPLES)

    def sample(self) -> None:
        one, start = self.contestant, time.monotonic()
        place = len(self.samples) % len(one.inputs)
        given = place if self.by_place else one.prepare(one.inputs[place])
        if one.hot:
            self.call(given)
        (seconds, result), watched = watch(lambda: self.clock.time(self.call, given))
        one.check(place, result)
        self.watched.append(watched)
        self.samples.append(seconds)
        wait = (self.by_host and watched.wait_within(seconds)) or 0.0
        if is_calm(seconds, seconds - wait):
            self.calm.append(seconds)
        self.spent_seconds += time.monotonic() - start - wait


def race(
    contestants: Mapping[Key, Contestant],
    clock: Clock,
    read_state: Read = lambda: None,
    *,
    seconds: float,
    seed: int = 0,
    threads: int | None = None,
) -> dict[Key, Timing | Exception]:
    """Samples of each, until there are ``enough``; or what was raised, which takes only that one out.

    Args:
        read_state: asked before, during and after.
        seconds: budget of one contestant, what its turns take off the clock included, and waits for a core not. Whoever
            is too slow for it still gives FEWEST_SAMPLES.
        threads: of the host; without it, as many as this process has cores.
    """
    told: dict[Key, Timing | Exception] = {}
    with pinned_threads(threads), undisturbed():
        runners = _attempt({key: partial(Runner, one, clock) for key, one in contestants.items()}, told)
        states = _take_turns(runners, clock, read_state, told, seconds, random.Random(seed))
        about = summarize(states)
        return told | {key: one.timing(about) for key, one in runners.items() if key not in told}


def _take_turns(
    runners: dict[Key, Runner],
    clock: Clock,
    read_state: Read,
    told: dict[Key, Timing | Exception],
    seconds: float,
    order: random.Random,
) -> list[GpuState]:
    states, read_at = [read_state()], time.monotonic()
    while waiting := [key for key, one in runners.items() if key not in told and not one.is_done(seconds)]:
        for key in a_round(waiting, runners, order):
            clock.rest()
            _attempt({key: runners[key].sample}, told)
            if time.monotonic() - read_at >= STATE_EVERY_SECONDS:
                states.append(read_state())
                read_at = time.monotonic()
    states.append(read_state())
    return [state for state in states if state is not None]


def a_round(waiting: Sequence[Key], runners: Mapping[Key, Runner], order: random.Random) -> list[Key]:
    """Who takes a turn, in random order. Quick ones take several while the slowest takes one, so that the samples of
    both cover the same stretch of time."""
    slowest = max(runners[key].median_seconds for key in waiting)
    turns = [key for key in waiting for _ in range(min(MOST_TURNS, round(slowest / runners[key].median_seconds)))]
    return order.sample(turns, len(turns))


def _attempt(actions: Mapping[Key, Callable[[], Any]], told: dict[Key, Timing | Exception]) -> dict[Key, Any]:
    done = {}
    for key, action in actions.items():
        try:
            done[key] = action()
        except Exception as error:  # of an implementation: its own row tells it
            told[key] = error
    return done
