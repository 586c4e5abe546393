"""Loads a trace of any known format, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kvproof_traces.azure import read_azure
from kvproof_traces.detect import FORMATS, detect
from kvproof_traces.lines import TraceError
from kvproof_traces.mooncake import read_mooncake
from kvproof_traces.native import read_native
from kvproof_traces.request import Request

READERS: dict[str, Callable[[str | Path], Iterator[Request]]] = {
    "azure": read_azure,
    "mooncake": read_mooncake,
    "native": read_native,
}
SAMPLES = Path(__file__).with_name("samples")
"""Made-up files of each format: azure.csv, mooncake.jsonl, native.jsonl, and dirty ones that must be refused."""


@dataclass(frozen=True)
class Trace:
    """A loaded file. No row is ever dropped: ``rows_read == len(requests)``."""

    requests: tuple[Request, ...]
    """In the order of the file, which is the order of arrival."""
    format: str
    """"azure", "mooncake" or "native"."""
    path: Path
    rows_read: int


def load(path: str | Path, *, limit: int | None = None, format: str | None = None) -> Trace:
    """The first ``limit`` requests of the file (None: all), in the ``format`` named or else found from the content.

    Rows past the limit are not looked at; of the others one bad row refuses the whole call.

    Raises:
        TraceError: a row that can't be read, a file without rows, or of an unknown format.
        ValueError: a bad ``limit``, or a ``format`` that does not exist.
        OSError: no such file.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit: {limit!r} is not a number of requests; give at least 1, or None for all")
    if format is not None and format not in READERS:
        raise ValueError(f"format: unknown trace format {format!r}; known are {', '.join(FORMATS)}")
    name = detect(path) if format is None else format
    requests = tuple(islice(READERS[name](path), limit))
    if not requests:
        raise TraceError(path, 1, "file", "holds no request", "give a trace with at least one row")
    return Trace(requests, name, Path(path), len(requests))
