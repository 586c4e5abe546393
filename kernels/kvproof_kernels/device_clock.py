"""How long a GPU works on a launch: neither the host's part nor what a cache still holds counts.

Before each sample the device reads a stretch of memory far larger than its cache. That has two effects: nothing that
the launch will read is in the cache, and the host has the time to queue the launch behind it, so that the events around
the launch enclose the device's work alone. Reading leaves no line to be written back, which the launch would pay for.
Whether the host was early enough is asked for each sample, not hoped for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

STRETCH_BYTES = 2**29
"""Ten times the largest cache, and a tenth of a millisecond of the fastest memory of today."""
FEWEST_STRETCHES = 4
MOST_STRETCHES = 256


class HostTooSlow(RuntimeError):
    """The device was idle before the launch came, however long it was kept busy: the launch waits for it somewhere."""


class DeviceClock:
    """Times launches on one CUDA device.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.stretch = torch.ones(STRETCH_BYTES // 4, device=device)
        self.num_stretches = FEWEST_STRETCHES

    def seconds(self, call: Callable[[], Any]) -> float:
        """Of the work that ``call`` gives the device.

        Raises:
            HostTooSlow: ``call`` waits for the device, as a copy to the host does.
        """
        while True:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(self.num_stretches):
                self.stretch.sum()
            start.record()
            call()
            end.record()
            host_was_early = not start.query()
            end.synchronize()
            if host_was_early:
                return start.elapsed_time(end) / 1e3
            if self.num_stretches >= MOST_STRETCHES:
                raise HostTooSlow(
                    f"the host is not done before {self.num_stretches} x {STRETCH_BYTES:,} bytes are read"
                )
            self.num_stretches *= 2

    def read_bytes_per_second(self, repeats: int = 7) -> float:
        """The roof: reading ``stretch`` once, the best of some tries."""
        return STRETCH_BYTES / min(self.seconds(self.stretch.sum) for _ in range(repeats))


@dataclass(frozen=True)
class Interval:
    """Where the median of a quantity lies, by samples of it."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f} to {self.high:.3f}]"


def median_interval(samples: Sequence[float], confidence: float) -> Interval:
    """The narrowest pair of order statistics, symmetric in rank, that holds the median with this confidence.

    Of n samples the number below the median is binomial, (n, 1/2), whatever their distribution: the interval from the
    k-th smallest to the k-th largest misses it with probability 2·P(X < k). Sources: W. J. Conover, Practical
    Nonparametric Statistics, 3.2.

    Raises:
        ValueError: too few samples for this confidence.
    """
    n, ordered = len(samples), sorted(samples)
    k, missed = 0, 2 * 0.5**n
    while missed <= 1 - confidence and k < (n + 1) // 2:
        k += 1
        missed += 2 * math.comb(n, k) * 0.5**n
    if k == 0:
        raise ValueError(f"{n} samples say nothing with confidence {confidence}: give more")
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return Interval(ordered[k - 1], middle, ordered[n - k])
