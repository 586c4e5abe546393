"""Requests of a file one after the other, in constant memory, with every row accounted for."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from kvproof_traces.detect import detect
from kvproof_traces.formats import FORMATS
from kvproof_traces.lines import TraceError
from kvproof_traces.reading import ArrivalOrder, MissingOption, Options, PrefixChain, Reader, Source
from kvproof_traces.request import Request


class Stream:
    """The requests of one file, in order of arrival; iterated once. The counts are those of the rows read so far.

    Memory does not grow with the file, but for what a check has to remember: hash ids (see PrefixChain), ids of a
    native file, later turns of sessions that wait for their time.
    """

    def __init__(self, path: str | Path, *, format: str | None = None, skip_bad: bool = False, **options: Any) -> None:
        """
        Args:
            format: a key of ``FORMATS``; None: found from the content.
            skip_bad: count bad rows by reason instead of refusing the file at the first.
            options: fields of ``Options``, which some formats need.

        Raises:
            TraceError: of no known format, or an option missing that this one can't be read without.
            ValueError: a format or an option that does not exist.
            OSError: no such file.
        """
        if format is not None and format not in FORMATS:
            raise ValueError(f"format: unknown trace format {format!r}; known are {', '.join(FORMATS)}")
        self.path, self.skip_bad = Path(path), skip_bad
        self.format = format or detect(path)
        self.rows_read = self.num_kept = 0
        self._was_iterated = False
        self._source = Source(self.path, _options(options))
        self._dropped: Counter[str] = Counter()
        self._reader = FORMATS[self.format].opener(self._source)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Rows skipped, by reason; most frequent first."""
        return dict(self._dropped.most_common())

    @property
    def num_held_back(self) -> int:
        """Rows that were read and not yet given out, because a later one may arrive before. None at the end."""
        return self.rows_read - self.num_kept - self._dropped.total()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader had to assume, in sentences."""
        return tuple(self._source.notes)

    def __iter__(self) -> Iterator[Request]:
        if self._was_iterated:
            raise RuntimeError(f"{self.path}: is being read already; open another stream of it")
        self._was_iterated = True
        return self._counted()

    def _counted(self) -> Iterator[Request]:
        requests, horizon = self._checked(self._reader), self._reader.horizon
        for request in requests if horizon is None else _in_order_of_arrival(requests, horizon):
            self.num_kept += 1
            yield request
        if self.num_held_back:
            raise AssertionError(f"{self.path}: {self.num_held_back} rows are neither kept nor dropped")

    def _checked(self, reader: Reader) -> Iterator[Request]:
        parse, accept, chain = reader.parse, reader.accept, PrefixChain(self.path)
        order = ArrivalOrder(self.path, reader.time_field) if reader.horizon is None else None
        for number, row in reader.rows:
            self.rows_read += 1
            try:
                request = parse(number, row)
                if order is not None:
                    order.check(number, request.arrival_ms)
                if request.hash_ids:
                    chain.check(number, request)  # the last check: it remembers what it lets through
            except TraceError as error:
                if not self.skip_bad or isinstance(error, MissingOption):
                    raise
                self._dropped[error.reason] += 1
                continue
            if order is not None:
                order.accept(request.arrival_ms)
            if accept is not None:
                accept(request)
            yield request


def stream(path: str | Path, *, format: str | None = None, skip_bad: bool = False, **options: Any) -> Stream:
    """The requests of ``path``, to be iterated once; see ``Stream``."""
    return Stream(path, format=format, skip_bad=skip_bad, **options)


def _options(given: Mapping[str, Any]) -> Options:
    if unknown := [name for name in given if name not in Options.__dataclass_fields__]:
        known = ", ".join(Options.__dataclass_fields__)
        raise ValueError(f"{unknown[0]}: unknown option; known are format, skip_bad, {known}")
    return Options(**given)


def _in_order_of_arrival(requests: Iterator[Request], horizon: Callable[[], float]) -> Iterator[Request]:
    """Holds back what arrives after the horizon, past which rows still to be read may come first."""
    held: list[tuple[float, int, Request]] = []
    ties = count()
    for request in requests:
        heapq.heappush(held, (request.arrival_ms, next(ties), request))
        while held and held[0][0] <= horizon():
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]
