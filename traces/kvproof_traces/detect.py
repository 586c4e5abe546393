"""Finds the format of a trace from its content: the columns of a table, or the fields of the first JSON rows."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import NoReturn

from kvproof_traces import azure, mooncake, native
from kvproof_traces.formats import FORMATS
from kvproof_traces.json_rows import Row, parse_object
from kvproof_traces.lines import TraceError, line_text, raw_lines

NUM_ROWS = 64
"""JSON rows looked at: an optional field need not be in the first of them."""

TABLES = {azure.HEADER: "azure", azure.MULTIMODAL_HEADER: "azure-multimodal"}


def detect(path: str | Path) -> str:
    """The name of the format, a key of ``FORMATS``. The order of JSON fields, and the name of the file, say nothing.

    Raises:
        TraceError: none of the known ones, which are listed.
        OSError: no such file.
    """
    first = list(islice(raw_lines(path), NUM_ROWS))
    if not first:
        _unknown(path, "header", "is missing")
    number, raw = first[0]
    text = line_text(path, number, raw)
    if text.lstrip().startswith("{"):
        return _json_lines(path, first)
    return TABLES.get(text) or _unknown(path, "header", f"starts with {text[:60]!r}")


def _json_lines(path: str | Path, first: list[tuple[int, bytes]]) -> str:
    rows = [parse_object(path, *first[0]), *_readable(path, first[1:])]
    fields = {field for row in rows for field in row}
    if fields == set(mooncake.FIELDS):
        return "mooncake"
    if foreign := [field for row in rows for field in row if field not in native.FIELDS]:
        _unknown(path, ", ".join(dict.fromkeys(foreign)), "in no format known here")
    return "native"


def _readable(path: str | Path, lines: list[tuple[int, bytes]]) -> list[Row]:
    """The rows that are objects; what is wrong with the others is for their reader to say."""
    rows = []
    for number, raw in lines:
        try:
            rows.append(parse_object(path, number, raw))
        except TraceError:
            continue
    return rows


def _unknown(path: str | Path, field: str, what: str) -> NoReturn:
    known = ", ".join(FORMATS)
    raise TraceError(path, 1, field, f"{what}: unknown trace format", f"known are {known}; name one if it is one")
