"""Azure's inference traces: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Of 2023 (Patel et al., Splitwise, ISCA 2024) and 2024 (Stojkovic et al., DynamoLLM, HPCA 2025); the multimodal one (Qiu
et al., ModServe, SoCC 2025) has ``NumImages`` as well.

Times of 2023 have seven decimals, ticks of 100 ns, and no zone; those of 2024 have six, or none, and ``+00:00``. The
standard parsers refuse or drop a seventh digit, and a float of seconds since the epoch can't hold it: ticks stay
integers until the first row's are subtracted.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from kvproof_traces.lines import TraceError
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request
from kvproof_traces.table_rows import Table

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
HEADER = ",".join(COLUMNS)
MULTIMODAL_HEADER = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
TICKS_PER_SECOND = 10_000_000
TICKS_PER_MS = 10_000

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,7}))?(\+00:00)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
_NAMES = {"num_prompt_tokens": "ContextTokens", "num_output_tokens": "GeneratedTokens", "arrival_ms": "TIMESTAMP"}


def open_azure(source: Source) -> Reader:
    """A file of 2023 or 2024.

    Raises:
        TraceError: another header.
    """
    return _open(source, HEADER)


def open_multimodal(source: Source) -> Reader:
    """A multimodal file. The context's tokens are taken as they stand: how many of them are images is not published.

    Raises:
        TraceError: another header.
    """
    source.note("NumImages is checked and left out: the file does not say how many tokens an image takes")
    return _open(source, MULTIMODAL_HEADER)


def _open(source: Source, header: str) -> Reader:
    path, columns = source.path, header.split(",")
    table = Table(path, (), "")
    if table.header != columns:
        raise TraceError(path, 1, "header", f"is {','.join(table.header)!r}", f"this format starts with {header}")
    table = Table(path, columns, "")
    ticks_of = _Ticks(path)

    def parse(number: int, raw: bytes) -> Request:
        stamp, *images, prompt, output = table.cells(number, raw)
        ticks = ticks_of(number, stamp)
        for text in images:
            table.count(number, "NumImages", text)
        values = {
            "request_id": f"r{number - 2}",
            "arrival_ms": ticks_of.since_first(number, stamp, ticks),
            "num_prompt_tokens": table.count(number, "ContextTokens", prompt),
            "num_output_tokens": table.count(number, "GeneratedTokens", output),
        }
        request = build_request(path, number, _NAMES, values)
        ticks_of.accept(ticks)
        return request

    return Reader(table.rows, parse, "TIMESTAMP")


class _Ticks:
    """Times as whole ticks, and since the first row that was kept."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.first: int | None = None
        self.last = 0
        self.zone: str | None = None
        self.minute = ("", 0)

    def __call__(self, number: int, stamp: str) -> int:
        """100 ns ticks since 1970, exact."""
        match = _TIME.fullmatch(stamp)
        if match is None:
            raise self._refused(number, stamp, "")
        whole, fraction, zone = match.groups()
        if zone != self.zone and self.first is not None:
            raise self._refused(
                number, stamp, f" as the rows above give it, {'with' if self.zone else 'without'} a zone"
            )
        if whole[:17] != self.minute[0]:  # the date changes seldom, and taking it apart is what costs
            try:
                elapsed = datetime.fromisoformat(whole[:17] + "00") - _EPOCH
            except ValueError as error:
                raise self._refused(number, stamp, f" ({error})") from None
            self.minute = whole[:17], elapsed.days * 86_400 + elapsed.seconds
        seconds = int(whole[17:])
        if seconds > 59:
            raise self._refused(number, stamp, " (second must be in 0..59)")
        self.zone = zone
        return (self.minute[1] + seconds) * TICKS_PER_SECOND + (int(fraction.ljust(7, "0")) if fraction else 0)

    def _refused(self, number: int, stamp: str, why: str) -> TraceError:
        cure = "give YYYY-MM-DD HH:MM:SS with at most 7 decimals, no zone or +00:00"
        return TraceError(self.path, number, "TIMESTAMP", f"{stamp!r} is not a time{why}", cure, reason="bad time")

    def since_first(self, number: int, stamp: str, ticks: int) -> float:
        if self.first is None:
            return 0.0
        if ticks < self.last:
            what = f"{stamp} is {(self.last - ticks) / TICKS_PER_MS:g} ms before the row above"
            cure = "sort the file by time"
            raise TraceError(self.path, number, "TIMESTAMP", what, cure, reason="time goes back")
        return (ticks - self.first) / TICKS_PER_MS

    def accept(self, ticks: int) -> None:
        self.first = ticks if self.first is None else self.first
        self.last = ticks
