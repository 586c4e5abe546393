"""Parts of a trace: by rows, by time, or drawn at random; the times of a part begin at 0."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from kvproof_traces.request import Request


def rows(requests: Iterable[Request], start: int = 0, stop: int | None = None) -> Iterator[Request]:
    """Requests ``start`` up to, not including, ``stop``, counted from 0 in order of arrival; the rest is not read.

    Raises:
        ValueError: an empty range.
    """
    if start < 0 or (stop is not None and stop <= start):
        raise ValueError(f"rows: {start}:{stop} is no range; give START:STOP, from 0, with START below STOP")
    return islice(iter(requests), start, stop)


def between(requests: Iterable[Request], start_ms: float = 0.0, stop_ms: float | None = None) -> Iterator[Request]:
    """Requests that arrive from ``start_ms`` up to, not including, ``stop_ms``; the rest is not read.

    Raises:
        ValueError: an empty range.
    """
    stop_ms = float("inf") if stop_ms is None else stop_ms
    if not 0 <= start_ms < stop_ms:
        raise ValueError(f"times: {start_ms:g}:{stop_ms:g} ms is no range; give START:STOP, from 0, START below STOP")
    return _between(requests, start_ms, stop_ms)


def _between(requests: Iterable[Request], start_ms: float, stop_ms: float) -> Iterator[Request]:
    for request in requests:
        if request.arrival_ms >= stop_ms:
            return
        if request.arrival_ms >= start_ms:
            yield request


def sample(requests: Iterable[Request], count: int, seed: int = 0) -> tuple[Request, ...]:
    """``count`` requests, each as likely as another, in order of arrival; all where there are no more.

    One pass, in memory of ``count`` (Vitter's algorithm R, 1985). The same for the same seed on every Python.

    Raises:
        ValueError: ``count`` below 1.
    """
    if count < 1:
        raise ValueError(f"sample: {count} is no number of requests; give at least 1")
    rng, kept = random.Random(int(seed)), list[tuple[int, Request]]()
    for index, request in enumerate(requests):
        if index < count:
            kept.append((index, request))
        elif (place := int(rng.random() * (index + 1))) < count:
            kept[place] = (index, request)
    return tuple(request for _, request in sorted(kept, key=lambda pair: pair[0]))


def from_zero(requests: Iterable[Request]) -> Iterator[Request]:
    """The same requests with times since the first of them."""
    first: float | None = None
    for request in requests:
        first = request.arrival_ms if first is None else first
        # Rounded to picoseconds, so that a difference of decimals is a decimal.
        yield replace(request, arrival_ms=round(request.arrival_ms - first, 9)) if first else request
