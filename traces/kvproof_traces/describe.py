"""What traffic is like: lengths, arrivals, and how much of the prompts is shared. One pass, one request at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvproof_traces.request import Request
from kvproof_traces.sharing import CAPACITIES, Sharing, SharingTally

BIN_MS = 1000.0


@dataclass(frozen=True)
class Lengths:
    """Tokens. Percentiles are interpolated between neighbours, as NumPy's default is."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True)
class Arrivals:
    """When requests come. None where all come at once."""

    span_seconds: float
    """From the first to the last."""
    num_distinct_times: int
    requests_per_second: float | None
    dispersion: float | None
    """Variance ÷ mean of the number of arrivals in each second of the trace's clock, from the first arrival's second to
    the last's: 1 for a Poisson process, more for bursts."""


@dataclass(frozen=True)
class Description:
    """What one trace is like."""

    num_requests: int
    prompt: Lengths
    output: Lengths
    arrivals: Arrivals
    sharing: Sharing | None
    """None when no request has hash ids."""
    num_branching: int
    """Requests with several samples or forks."""
    num_aborted: int


def describe(requests: Iterable[Request], capacities: Sequence[int] = CAPACITIES) -> Description:
    """The figures of ``requests``, which must be in order of arrival.

    ``capacities`` are tokens of prefix cache, for the hit rates. Remembers distinct lengths and hash ids, not requests.

    Raises:
        ValueError: no request, or a capacity below 1.
    """
    prompts, outputs, arrivals, sharing = Counter[int](), Counter[int](), _Arrivals(), SharingTally(capacities)
    num_branching = num_aborted = 0
    for request in requests:
        prompts[request.num_prompt_tokens] += 1
        outputs[request.num_output_tokens] += 1
        arrivals.add(request.arrival_ms)
        sharing.add(request)
        num_branching += request.num_samples > 1 or bool(request.forks)
        num_aborted += request.abort_after is not None
    if not prompts:
        raise ValueError("requests: none, so that there is nothing to describe")
    figures = lengths(prompts), lengths(outputs), arrivals.result(), sharing.result()
    return Description(prompts.total(), *figures, num_branching, num_aborted)


def lengths(counts: Counter[int]) -> Lengths:
    """The figures of a multiset of lengths."""
    values, total = sorted(counts), counts.total()
    mean = sum(value * count for value, count in counts.items()) / total
    p50, p90, p99 = (_percentile(counts, values, share * (total - 1)) for share in (0.5, 0.9, 0.99))
    return Lengths(mean, p50, p90, p99, values[-1])


def _percentile(counts: Counter[int], values: Sequence[int], place: float) -> float:
    """The value at a place from 0 in the sorted list, between two places in proportion."""
    whole, num_before = int(place), 0
    for index, value in enumerate(values):
        num_before += counts[value]
        if num_before > whole:
            above = value if num_before > whole + 1 or index + 1 == len(values) else values[index + 1]
            return value + (place - whole) * (above - value)
    raise AssertionError("a place beyond the last value")


class _Arrivals:
    """Sums over bins, of which only the present one is open: times never go back."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last = 0.0
        self.num = self.num_distinct = 0
        self.first_bin = self.bin = self.in_bin = self.sum_squares = 0

    def add(self, ms: float) -> None:
        place = int(ms // BIN_MS)
        if self.first is None:
            self.first, self.first_bin, self.bin = ms, place, place
        elif ms < self.last:
            raise ValueError(f"requests: one at {ms:g} ms comes after one at {self.last:g} ms; sort by arrival_ms")
        if ms != self.last or not self.num:
            self.num_distinct += 1
        if place != self.bin:
            self.sum_squares += self.in_bin**2
            self.bin, self.in_bin = place, 0
        self.in_bin += 1
        self.num += 1
        self.last = ms

    def result(self) -> Arrivals:
        seconds = (self.last - (self.first or 0.0)) / 1000
        if not seconds:
            return Arrivals(0.0, self.num_distinct, None, None)
        num_bins = self.bin - self.first_bin + 1
        mean = self.num / num_bins
        variance = (self.sum_squares + self.in_bin**2) / num_bins - mean**2
        return Arrivals(seconds, self.num_distinct, self.num / seconds, variance / mean)
