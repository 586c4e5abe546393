"""CSV tables of numbers, read by the names of their columns: versions of one format move them about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvproof_traces.lines import TraceError, line_text, raw_lines

_SECONDS = re.compile(r"\d{1,17}(\.\d{1,30})?([eE][-+]?\d{1,3})?", re.ASCII)


class Table:
    """An open CSV file. ``rows`` are (line number, bytes); ``cells`` takes one apart.

    Raises:
        TraceError: a header without one of ``columns``, or with one twice.
    """

    def __init__(self, path: str | Path, columns: Sequence[str], cure: str) -> None:
        self.path = path
        self.rows: Iterator[tuple[int, bytes]] = raw_lines(path)
        number, raw = next(self.rows, (1, b""))
        self.header = line_text(path, number, raw).split(",") if raw else []
        for name in columns:
            if self.header.count(name) != 1:
                what = "is not a column of the header" if name not in self.header else "is a column twice"
                raise TraceError(path, number, name, what, cure)
        self._places = [self.header.index(name) for name in columns]

    def cells(self, number: int, raw: bytes) -> list[str]:
        """The cells of one row under the columns asked for, in that order.

        Raises:
            TraceError: a row of another length than the header.
        """
        cells = line_text(self.path, number, raw).split(",")
        if len(cells) < len(self.header):
            field = self.header[len(cells)]
            raise TraceError(self.path, number, field, "is missing", "a line may be cut off: mend or remove it")
        if len(cells) > len(self.header):
            what = f"has {len(cells)} cells, the header {len(self.header)}"
            raise TraceError(self.path, number, "line", what, "give one cell a column")
        return [cells[place] for place in self._places]

    def count(self, number: int, field: str, text: str) -> int:
        """A number of tokens, which may be 0.

        Raises:
            TraceError: no whole number.
        """
        # Beyond nine digits it is no length of anything, and int() has a limit of its own.
        if text.isdigit() and text.isascii() and len(text) <= 9:
            return int(text)
        what, cure = f"{text!r} is not a number of tokens", "give a whole number"
        if not text:
            what, cure = "is empty", "remove the row or put the number back"
        raise TraceError(self.path, number, field, what, cure, reason="bad number")

    def lengths_and_total(self, number: int, fields: Sequence[str], cells: Sequence[str]) -> tuple[int, int]:
        """The lengths of prompt and output, of which the third cell is the sum.

        Raises:
            TraceError: no whole numbers, or another sum.
        """
        prompt, output, total = map(self.count, [number] * 3, fields, cells)
        if prompt + output != total:
            what = f"{total} is not {prompt} + {output}"
            raise TraceError(self.path, number, fields[2], what, "a column may be shifted", reason="wrong total")
        return prompt, output

    def seconds_as_ms(self, number: int, field: str, text: str) -> float:
        """Milliseconds of a decimal number of seconds, with an exponent where a program wrote a small one.

        Raises:
            TraceError: no such number, below zero, or past what floating point can hold.
        """
        if _SECONDS.fullmatch(text) and float(text) < 2**53 / 1000:
            return round(float(text) * 1000, 9)
        raise TraceError(self.path, number, field, f"{text!r} is not a time", "give seconds, 0 up", reason="bad time")


class SinceFirst:
    """Times since the first row that was kept, for files that count from somewhere else."""

    def __init__(self, path: str | Path, field: str) -> None:
        self.path, self.field = path, field
        self.first: float | None = None
        self.last = 0.0

    def __call__(self, number: int, ms: float) -> float:
        """Milliseconds since the first row. To be kept with ``accept``.

        Raises:
            TraceError: before the row above.
        """
        if self.first is None:
            self._tried = ms
            return 0.0
        since = round(ms - self.first, 9)
        if since < self.last:
            what = f"{ms:.12g} ms comes after {self.first + self.last:.12g} ms"
            raise TraceError(self.path, number, self.field, what, "sort the file by time", reason="time goes back")
        return since

    def accept(self, since: float) -> None:
        """The row is kept."""
        self.first = self._tried if self.first is None else self.first
        self.last = since
