"""Loads a trace of any known format, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from kvproof_traces.lines import TraceError
from kvproof_traces.request import Request
from kvproof_traces.stream import stream

SAMPLES = Path(__file__).with_name("samples")
"""Made-up files of each format, and dirty ones that must be refused."""


@dataclass(frozen=True)
class Trace:
    """A loaded file. Every row is accounted for: ``rows_read == len(requests) + sum(dropped.values())``."""

    requests: tuple[Request, ...]
    """In order of arrival; of equal times, in the order of the file."""
    format: str
    """A key of ``FORMATS``."""
    path: Path
    rows_read: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows skipped, by the reason in ``REASONS``; empty unless ``skip_bad``."""
    notes: tuple[str, ...] = ()
    """What the reader had to assume, in sentences."""


def load(
    path: str | Path,
    *,
    limit: int | None = None,
    format: str | None = None,
    skip_bad: bool = False,
    **options: Any,
) -> Trace:
    """The first ``limit`` requests of the file (None: all), in the ``format`` named or else found from the content.

    Rows past the limit are not looked at; of the others one bad row refuses the whole call, unless ``skip_bad``.
    ``options`` are the fields of ``Options``: what a format does not say and its reader must be told.

    Raises:
        TraceError: a row that can't be read, a file without a request, or of an unknown format.
        ValueError: a bad ``limit``, or a ``format`` or an option that does not exist.
        OSError: no such file.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit: {limit!r} is not a number of requests; give at least 1, or None for all")
    rows = stream(path, format=format, skip_bad=skip_bad, **options)
    requests = tuple(islice(rows, limit))
    if not requests:
        what = f"holds no request ({rows.rows_read} rows dropped)" if rows.dropped else "holds no request"
        raise TraceError(path, 1, "file", what, "give a trace with at least one good row")
    return Trace(requests, rows.format, Path(path), rows.rows_read - rows.num_held_back, rows.dropped, rows.notes)
