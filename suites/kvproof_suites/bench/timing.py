"""The one place that measures time: warm-up, samples, quartiles, and the roof they are held against.

Samples come from pytest-benchmark's ``pedantic`` mode and its monotonic clock, so that ``--benchmark-json`` and the
records of a run tell the same. Each sample is one launch on the next of several inputs; what a launch reads has left
the cache by the time its turn comes again.
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

ENOUGH_SAMPLES = 20
FEWEST_SAMPLES = 5
BUDGET_SECONDS = 0.8
"""Of one measurement; a launch too slow for ENOUGH_SAMPLES within it still gives FEWEST_SAMPLES."""

ROOF_BYTES = 2**28
ROOF_REPEATS = 7


@dataclass(frozen=True)
class Timing:
    """Samples of one launch or operation, in seconds."""

    samples: tuple[float, ...]

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
        q1, median, q3 = self.quartiles_ms
        return {"q1_ms": q1, "median_ms": median, "q3_ms": q3, "num_samples": len(self.samples)}

    def per(self, num_operations: int) -> Timing:
        """Of one of ``num_operations`` that each sample held."""
        return Timing(tuple(sample / num_operations for sample in self.samples))


def measure(
    benchmark: Any,
    call: Callable[[Any], Any],
    inputs: Sequence[Any],
    device: str,
    prepare: Callable[[Any], Any] = lambda given: given,
) -> Timing | None:
    """Time ``call(prepare(input))`` with ``inputs`` in turn; preparing is not timed.

    Returns:
        None when pytest-benchmark is switched off, as it is under pytest-xdist: then nothing was timed.
    """
    finish = synchronizer(device)

    def timed(argument: Any) -> None:
        call(argument)
        finish()

    with pinned_threads():
        for given in inputs:  # compilation, allocation, first touch
            timed(prepare(given))
        seconds = stopwatch(timed, prepare(inputs[0]))
        turn = itertools.cycle(inputs)
        benchmark.pedantic(timed, setup=lambda: ((prepare(next(turn)),), {}), rounds=num_rounds(seconds))
    return Timing(tuple(benchmark.stats.stats.data)) if benchmark.enabled else None


def num_rounds(seconds: float) -> int:
    """How often something that takes ``seconds`` is timed."""
    affordable = int(BUDGET_SECONDS / max(seconds, 1e-9))
    return max(FEWEST_SAMPLES, min(ENOUGH_SAMPLES, affordable))


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
    source = torch.ones(ROOF_BYTES // 4, device=device)
    target = torch.empty_like(source)
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
