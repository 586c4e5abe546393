"""Times: when samples are enough, what is said of them, how pytest-benchmark gets them, and the roof above them.

Samples are taken by ``race``, in which everything that is compared takes turns; pytest-benchmark is given them by a
clock that plays them back, so that ``--benchmark-json``, its tables and the records of a run tell the same.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvproof_reports.samples import sample_fields
from kvproof_suites.bench.huge_pages import in_huge_pages

ENOUGH_SAMPLES = 50
FEWEST_SAMPLES = 6
"""The fewest that an interval of their median can be made of."""
SAMPLES_TO_JUDGE = 12
"""The fewest of which a spread is believed."""
CERTAIN = 0.01
"""Relative standard error of a median that needs no more samples."""

ROOF_BYTES = 2**28
ROOF_REPEATS = 7


@dataclass(frozen=True)
class Timing:
    """Samples of one launch or operation, in seconds, in the order in which they were taken."""

    samples: tuple[float, ...]
    clocks: Mapping[str, Any] | None = None
    """State of the GPU meanwhile, as ``gpu_state.summarize`` gives it."""
    waited: float | None = None
    """Share of a sample in which a thread waited for a core, the median; None where the system does not count."""
    on_core: tuple[float, ...] | None = None
    """The samples less the waits of the one thread at work; None where several were, or the system does not count."""
    threads: int | None = None
    """Of the host, that a launch was given."""

    @property
    def quartiles_ms(self) -> tuple[float, float, float]:
        if len(self.samples) == 1:
            return (1e3 * self.samples[0],) * 3
        q1, median, q3 = statistics.quantiles(self.samples, n=4, method="inclusive")
        return 1e3 * q1, 1e3 * median, 1e3 * q3

    @property
    def median_seconds(self) -> float:
        return self.quartiles_ms[1] / 1e3

    def fields(self) -> dict[str, Any]:
        """As the record of a run names them."""
        return {
            **sample_fields(_ms(self.samples), core_ms=self.on_core and _ms(self.on_core)),
            "clocks": self.clocks,
            "waited": self.waited,
            "threads": self.threads,
        }

    def per(self, num_operations: int) -> Timing:
        """Of one of ``num_operations`` that each sample held."""
        core = self.on_core and tuple(one / num_operations for one in self.on_core)
        return replace(self, samples=tuple(one / num_operations for one in self.samples), on_core=core)


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * one for one in seconds]


def enough(samples: Sequence[float]) -> bool:
    """Whether there are ENOUGH_SAMPLES, or the median is known to within 1 % before that."""
    return len(samples) >= ENOUGH_SAMPLES or (
        len(samples) >= SAMPLES_TO_JUDGE and relative_standard_error(samples) < CERTAIN
    )


def relative_standard_error(samples: Sequence[float]) -> float:
    """Of the median, as of a normal distribution with the same quartiles: 1.253 σ/√n, with σ = (q3 - q1)/1.349."""
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return 1.2533 * (q3 - q1) / 1.349 / math.sqrt(len(samples)) / median


class Playback:
    """A timer of pytest-benchmark by which rounds last as long as samples that were taken before: each round reads it
    twice. ``@pytest.mark.benchmark(timer=PLAYBACK)`` puts it in place."""

    __name__ = "PLAYBACK"  # how pytest-benchmark calls the timer in its tables

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def load(self, samples: Sequence[float]) -> None:
        self._readings = itertools.chain.from_iterable((0.0, sample) for sample in samples)

    def __call__(self) -> float:
        return next(self._readings)


PLAYBACK = Playback()


def tell(benchmark: Any, timing: Timing) -> None:
    """Give the samples to pytest-benchmark, a round each."""
    PLAYBACK.load(timing.samples)
    benchmark.pedantic(lambda: None, rounds=len(timing.samples))


def stopwatch(call: Callable[..., Any], *args: Any) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call(*args)
    return time.perf_counter() - start


def median_seconds(call: Callable[[], Any], device: str, repeats: int = 5) -> float:
    """Of something that is timed beside the benchmark itself, such as planning."""
    finish = synchronizer(device)

    def timed() -> None:
        call()
        finish()

    with pinned_threads():
        timed()
        return statistics.median(stopwatch(timed) for _ in range(repeats))


def synchronizer(device: str) -> Callable[[], None]:
    """Waits until the device has done what it was given."""
    return functools.partial(torch.cuda.synchronize, device) if device.startswith("cuda") else lambda: None


@contextmanager
def pinned_threads(num_threads: int | None = None) -> Iterator[None]:
    """As many threads as this process has cores, whatever was set before; set back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or num_cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Roof:
    """Memory bandwidth of the device, measured in this process, in 1e9 bytes a second; the best of several tries."""

    read_gb_per_second: float
    copy_gb_per_second: float
    """Bytes read plus bytes written."""


@functools.cache
def roof(device: str) -> Roof:
    """A sum over, and a copy of, a tensor of 256 MiB: far larger than any cache."""
    source, target = (in_huge_pages(torch.empty(ROOF_BYTES // 4, device=device)).fill_(1) for _ in range(2))
    finish = synchronizer(device)

    def best(call: Callable[[], Any]) -> float:
        def timed() -> None:
            call()
            finish()

        timed()
        return min(stopwatch(timed) for _ in range(ROOF_REPEATS))

    with pinned_threads():
        read, copied = best(source.sum), best(lambda: target.copy_(source))
    return Roof(ROOF_BYTES / read / 1e9, 2 * ROOF_BYTES / copied / 1e9)
