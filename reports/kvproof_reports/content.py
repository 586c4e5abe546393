"""The lines of a results file, plain or packed, read one after the other: a few bytes may unpack to gigabytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kvproof_reports.validate import RecordError

MAX_LINE_BYTES = 1 << 24
"""Of one record; 400 samples, a counterexample and captured output take a hundredth of it."""
MAX_BYTES = 1 << 30
MAX_LINES = 1 << 22
"""Of a whole file, unpacked. Every law on every implementation that ships takes a fiftieth of it."""


def lines_of(path: Path) -> Iterator[bytes]:
    """Each line with its end, which the last one may lack; empty ones as well. Packed where the name ends in ``.gz``.

    Raises:
        RecordError: damaged, or beyond one of the limits.
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        if path.suffix != ".gz":
            yield from _bounded(file, path)
            return
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield from _bounded(unpacked, path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise RecordError(f"{path}: can't be unpacked: {error}") from None


def _bounded(file: IO[bytes] | gzip.GzipFile, path: Path) -> Iterator[bytes]:
    num_bytes = number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        num_bytes += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise RecordError(f"{path}:{number}: line: longer than {MAX_LINE_BYTES:,} bytes; a record a line is meant")
        if num_bytes > MAX_BYTES or number > MAX_LINES:
            raise RecordError(f"{path}:{number}: file: holds more than a run can have written; give one run")
        yield line
