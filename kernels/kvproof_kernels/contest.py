"""Tiles against the one of ``tiles.py`` on one device: who is right, who is faster, and by more than the noise.

All take turns, in an order that moves on from round to round, so that whatever the device does meanwhile meets each of
them. The tile of ``tiles.py`` takes part twice: how far it seems to be from itself is the noise. Who goes into the last
contest is decided on other samples than the contest itself, so that being lucky once is not enough.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvproof_kernels.candidates import tile_of
from kvproof_kernels.device_clock import Interval, median_interval
from kvproof_kernels.tiles import Configuration
from kvproof_kernels.trial import Trial
from kvproof_kernels.tuned import Tile

FIRST_ROUNDS = 5
NUM_FINALISTS = 4
CONFIDENCE = 0.999
WORTH = 1.01
"""A gain below this is not worth a line of the table, however sure it is."""

Launches = Sequence[Callable[[], Any]]


class Clock(Protocol):
    def seconds(self, call: Callable[[], Any]) -> float: ...


@dataclass(frozen=True)
class Final:
    """One tile in the last contest: for each workload the default's time over its own."""

    tile: Tile
    speedups: Sequence[Interval]


@dataclass(frozen=True)
class Verdict:
    """Of one contest."""

    default: Tile
    default_ms: Sequence[float]
    """Its median in each workload."""
    noise: Sequence[Interval]
    """The default's time over that of the default, in each workload."""
    finals: Sequence[Final]
    faults: Mapping[Tile, str]
    """Tiles that were among the fastest and gave something else than attention."""

    @property
    def best(self) -> Final | None:
        """The tile to adopt: faster in a workload, slower in none, and of such ones the fastest."""
        good = [final for final in self.finals if self.is_better(final)]
        return max(good, key=lambda final: statistics.geometric_mean(s.median for s in final.speedups), default=None)

    def is_better(self, final: Final) -> bool:
        pairs = list(zip(final.speedups, self.noise, strict=True))
        faster = any(speedup.low > max(WORTH, noise.high) for speedup, noise in pairs)
        return faster and not any(speedup.high < noise.low for speedup, noise in pairs)


class WrongDefault(RuntimeError):
    """The tile that everything is compared with does not give attention."""


def contest(candidates: Sequence[Configuration], trials: Sequence[Trial], clock: Clock, rounds: int) -> Verdict:
    """Find out whether one of ``candidates`` beats the first of them in the workloads of ``trials``.

    Raises:
        WrongDefault: the first of them has a fault; nothing is said about speed then.
    """
    default, *others = candidates
    if (fault := first_fault(default, trials)) is not None:
        raise WrongDefault(f"{tile_of(default)}: {fault}")
    scores = score(candidates, trials, clock)
    faults: dict[Tile, str] = {}
    finalists: list[Configuration] = []
    for candidate in sorted(others, key=scores.__getitem__):
        if len(finalists) == NUM_FINALISTS:
            break
        if (fault := first_fault(candidate, trials)) is None:
            finalists.append(candidate)
        else:
            faults[tile_of(candidate)] = fault
    raced = [race([default, default, *finalists], trial, clock, rounds) for trial in trials]
    noise, *speedups = zip(*(ratios(samples) for samples in raced), strict=True)
    finals = [Final(tile_of(finalist), speedup) for finalist, speedup in zip(finalists, speedups, strict=True)]
    default_ms = [1e3 * statistics.median(samples[0]) for samples in raced]
    return Verdict(tile_of(default), default_ms, noise, finals, faults)


def first_fault(candidate: Configuration, trials: Sequence[Trial]) -> str | None:
    found = (trial.fault(candidate) for trial in trials)
    return next((fault for fault in found if fault is not None), None)


def score(candidates: Sequence[Configuration], trials: Sequence[Trial], clock: Clock) -> dict[Configuration, float]:
    """Times the default's median, added up over the workloads, from a few rounds."""
    total = dict.fromkeys(candidates, 0.0)
    for trial in trials:
        samples = race(candidates, trial, clock, FIRST_ROUNDS)
        for candidate, seconds in zip(candidates, samples, strict=True):
            total[candidate] += statistics.median(seconds) / statistics.median(samples[0])
    return total


def race(contestants: Sequence[Configuration], trial: Trial, clock: Clock, rounds: int) -> list[list[float]]:
    """Seconds of each contestant, by round."""
    launches = [trial.planned(contestant) for contestant in contestants]
    for turns in launches:  # compilation, and the first look at each tensor
        for launch in turns:
            launch()
    samples: list[list[float]] = [[] for _ in contestants]
    for turn in range(rounds):
        for place in range(len(contestants)):
            which = (place + turn) % len(contestants)
            samples[which].append(clock.seconds(launches[which][turn % len(launches[which])]))
    return samples


def ratios(samples: Sequence[Sequence[float]]) -> list[Interval]:
    """The first one's time over that of each other, round by round."""
    first, *others = samples
    return [median_interval([a / b for a, b in zip(first, other, strict=True)], CONFIDENCE) for other in others]
