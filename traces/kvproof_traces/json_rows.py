"""JSON Lines, read strictly: one object a line, no field twice, none unknown, none missing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from kvproof_traces.lines import TraceError, numbered_lines
from kvproof_traces.request import FieldError, Request

Row = dict[str, Any]


def json_rows(path: str | Path, required: Collection[str], known: Collection[str]) -> Iterator[tuple[int, Row]]:
    """Yield (line number, object) of a file whose objects have all ``required`` fields and none beyond ``known``.

    Raises:
        TraceError: a line that is no such object; names the field.
    """
    for number, text in numbered_lines(path):
        row = parse_object(path, number, text)
        for field in row:
            if field not in known:
                raise TraceError(path, number, field, "is an unknown field", f"known are {', '.join(known)}")
        for field in required:
            if field not in row:
                raise TraceError(path, number, field, "is missing", f"a row needs {', '.join(required)}")
        yield number, row


def parse_object(path: str | Path, number: int, text: str) -> Row:
    """The object on one line.

    Raises:
        TraceError: not JSON, not an object, or a field twice, of which JSON readers silently keep one.
    """

    def unique(pairs: list[tuple[str, Any]]) -> Row:
        row = dict(pairs)
        if len(row) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise TraceError(path, number, twice, "is given twice", "keep one")
        return row

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON number")

    try:
        row = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except TraceError:
        raise
    except (ValueError, RecursionError) as error:
        cure = "a line may be cut off or hold two objects: give one JSON object a line"
        raise TraceError(path, number, "line", f"is not JSON ({error})", cure) from None
    if type(row) is not dict:
        raise TraceError(path, number, "line", f"is a JSON {type(row).__name__}", "give one JSON object a line")
    return row


def build_request(path: str | Path, number: int, names: Mapping[str, str], values: Mapping[str, Any]) -> Request:
    """The request of one line. ``names``: attribute of Request to field of the file, for the error.

    Raises:
        TraceError: a value that Request refuses, under the name it has in the file.
    """
    try:
        return Request(**values)
    except FieldError as error:
        raise TraceError(path, number, names[error.field], error.what, error.cure) from None


class ArrivalOrder:
    """Refuses a time that lies before the one above it. Equal times keep the order of the file."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.last = path, 0.0

    def check(self, number: int, arrival_ms: float) -> None:
        if arrival_ms < self.last:
            what = f"{arrival_ms:g} ms comes after {self.last:g} ms"
            raise TraceError(self.path, number, "timestamp", what, "sort the file by time")
        self.last = arrival_ms


class PrefixChain:
    """Checks that hash ids name prefixes: an id stands for its block and all blocks before it.

    Then an id has one predecessor wherever it appears, from which follow the rules that it is always at the same
    position, and that nothing can be shared after the first block that isn't.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.before: dict[tuple[int, int], int | None] = {}

    def check(self, number: int, request: Request) -> None:
        """
        Raises:
            TraceError: an id with two predecessors.
        """
        previous: int | None = None
        for position, value in enumerate(request.hash_ids):
            known = self.before.setdefault((request.hash_block_size, value), previous)
            if known != previous:
                what = f"id {value} at position {position} follows {_named(previous)} here and {_named(known)} before"
                raise TraceError(
                    self.path, number, "hash_ids", what, "an id must stand for its block and all blocks before it"
                )
            previous = value


def _named(value: int | None) -> str:
    return "nothing" if value is None else f"id {value}"
