"""How well a figure is known: medians with the interval that was recorded, as times and as rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvproof_reports.figures import figure
from kvproof_reports.statistics import FEWEST_SAMPLES, interval

Record = Mapping[str, Any]

INTERVAL, QUARTILES, REPEATS, POINT = "95 % interval", "quartiles", "fastest to slowest repeat", "no interval recorded"


@dataclass(frozen=True)
class Estimate:
    """A median, and between what it lies."""

    value: float
    low: float
    high: float
    kind: str
    """INTERVAL, of the median; QUARTILES, of the samples, where a run recorded no more; POINT, where not even those."""

    def inverse(self, work: float) -> Estimate:
        """``work`` over it: the fastest time gives the highest rate."""
        return Estimate(work / self.value, work / self.high, work / self.low, self.kind)

    def scaled(self, factor: float) -> Estimate:
        """In another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.kind)

    def __str__(self) -> str:
        return f"{figure(self.value)} {self.note}".rstrip()

    @property
    def note(self) -> str:
        """The range in brackets, with what it is where that is no interval."""
        if self.kind == POINT:
            return ""
        return f"[{self.range}]" if self.kind == INTERVAL else f"[{self.range}, {self.kind}]"

    @property
    def range(self) -> str:
        return "" if self.kind == POINT else f"{figure(self.low)} to {figure(self.high)}"


def time_ms(record: Record) -> Estimate | None:
    """The median launch or operation in ms; None for a row that was not timed."""
    median = record.get("median_ms")
    if not median:
        return None
    low, high, kind = _spread(record, median)
    if low <= 0:  # of a clock too coarse for what was timed; a rate can't be made of it
        return Estimate(median, median, median, POINT)
    return Estimate(median, min(low, median), max(high, median), kind)  # in a file of anybody's it may lie outside


def tokens_per_second(record: Record) -> Estimate | None:
    """The median rate; None where none was recorded."""
    time, rate = time_ms(record), record.get("tokens_per_second")
    return None if time is None or not rate else time.inverse(rate * time.value)


def _spread(record: Record, median: float) -> tuple[float, float, str]:
    if record.get("low_ms") is not None and record.get("high_ms") is not None:
        return record["low_ms"], record["high_ms"], INTERVAL
    samples = record.get("samples_ms") or ()
    if len(samples) >= FEWEST_SAMPLES and min(samples) > 0:
        found = interval(samples)
        return found.low, found.high, INTERVAL
    if record.get("q1_ms") is not None and record.get("q3_ms") is not None:
        return record["q1_ms"], record["q3_ms"], QUARTILES
    return median, median, POINT
