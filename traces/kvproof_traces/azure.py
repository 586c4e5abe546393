"""Azure LLM inference traces (Patel et al., Splitwise, ISCA 2024): ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Times have seven decimals, ticks of 100 ns, and no zone. The standard parsers refuse or drop the seventh digit, and a
float of seconds since the epoch can't hold it: ticks stay integers until the first row's are subtracted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from kvproof_traces.lines import TraceError, numbered_lines
from kvproof_traces.request import Request

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
HEADER = ",".join(COLUMNS)
TICKS_PER_SECOND = 10_000_000
TICKS_PER_MS = 10_000

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,7}))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)


def read_azure(path: str | Path) -> Iterator[Request]:
    """Yield the requests of an Azure CSV, each checked when reached; ``load`` takes a file whole or not at all.

    Raises:
        TraceError: another header, a missing or extra cell, a bad number or time, a time before the row above, or a
            request without prompt or output.
    """
    lines = numbered_lines(path)
    number, header = next(lines, (1, ""))
    if header != HEADER:
        raise TraceError(path, number, "header", f"is {header!r}", f"an Azure trace starts with {HEADER}")
    first = last = None
    for row, (number, text) in enumerate(lines):
        stamp, num_prompt_tokens, num_output_tokens = _cells(path, number, text)
        ticks = _ticks(path, number, stamp)
        first = ticks if first is None else first
        if last is not None and ticks < last:
            what = f"{stamp} is {(last - ticks) / TICKS_PER_MS:g} ms before the row above"
            raise TraceError(path, number, "TIMESTAMP", what, "sort the file by time")
        last = ticks
        yield Request(
            request_id=f"r{row}",
            arrival_ms=(ticks - first) / TICKS_PER_MS,
            num_prompt_tokens=_count(path, number, "ContextTokens", num_prompt_tokens),
            num_output_tokens=_count(path, number, "GeneratedTokens", num_output_tokens),
        )


def _cells(path: str | Path, number: int, text: str) -> list[str]:
    cells = text.split(",")
    if len(cells) < len(COLUMNS):
        raise TraceError(path, number, COLUMNS[len(cells)], "is missing", "a line may be cut off: mend or remove it")
    if len(cells) > len(COLUMNS):
        raise TraceError(path, number, "line", f"has {len(cells)} cells", f"give {HEADER}")
    return cells


def _ticks(path: str | Path, number: int, stamp: str) -> int:
    """100 ns ticks since 1970, exact."""
    match = _TIME.fullmatch(stamp)
    cure = "give YYYY-MM-DD HH:MM:SS with at most 7 decimals and no zone"
    if match is None:
        raise TraceError(path, number, "TIMESTAMP", f"{stamp!r} is not a time", cure)
    try:
        elapsed = datetime.fromisoformat(match[1]) - _EPOCH
    except ValueError as error:
        raise TraceError(path, number, "TIMESTAMP", f"{stamp!r} is not a time ({error})", cure) from None
    seconds = elapsed.days * 86_400 + elapsed.seconds
    return seconds * TICKS_PER_SECOND + int((match[2] or "").ljust(7, "0"))


def _count(path: str | Path, number: int, field: str, text: str) -> int:
    if not text:
        raise TraceError(path, number, field, "is empty", "remove the row or put the number back")
    # Beyond nine digits it is no length of anything, and int() has a limit of its own.
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise TraceError(path, number, field, f"{text!r} is not a number of tokens", "give a whole number")
    if int(text) == 0:
        raise TraceError(path, number, field, "is 0, so nothing was served", "remove the row")
    return int(text)
