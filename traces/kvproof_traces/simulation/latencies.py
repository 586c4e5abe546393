"""Histograms of latencies, whatever their number."""

from __future__ import annotations

import math

from kvproof_traces.simulation.result import Percentiles

BIN_WIDTH = math.log(1.01)
SMALLEST_MS = 1e-6


class Latencies:
    """A histogram with bins of 1 %, so that a percentile is known to half a percent."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self._bins: dict[int, int] = {}

    def add(self, ms: float) -> None:
        self.count += 1
        self.total += ms
        index = math.floor(math.log(max(ms, SMALLEST_MS)) / BIN_WIDTH)
        self._bins[index] = self._bins.get(index, 0) + 1

    def percentiles(self) -> Percentiles | None:
        if not self.count:
            return None
        return Percentiles(self.count, self.total / self.count, *map(self._percentile, (0.5, 0.9, 0.99)))

    def _percentile(self, share: float) -> float:
        rank = share * self.count
        for index in sorted(self._bins):
            rank -= self._bins[index]
            if rank <= 0:
                break
        return math.exp((index + 0.5) * BIN_WIDTH)
