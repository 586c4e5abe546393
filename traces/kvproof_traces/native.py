"""Our own JSON Lines: Mooncake's fields, and what no other format carries: names, branches, aborts, priorities.

    {"timestamp": 0, "input_length": 40, "output_length": 9, "hash_ids": [0], "id": "r0", "n": 4,
     "fork_at": [[5, 1, 2]], "abort_at": 7, "priority": 1, "hash_block_size": 512}

Only the first three are required; a field at its default is not written. A Mooncake file is a native file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from kvproof_traces.compressed import writing
from kvproof_traces.json_rows import as_ms, as_tuple, check_fields, parse_object
from kvproof_traces.lines import TraceError, raw_lines
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request

REQUIRED = ("timestamp", "input_length", "output_length")
FIELDS = {
    "timestamp": "arrival_ms",
    "input_length": "num_prompt_tokens",
    "output_length": "num_output_tokens",
    "hash_ids": "hash_ids",
    "hash_block_size": "hash_block_size",
    "id": "request_id",
    "n": "num_samples",
    "fork_at": "forks",
    "abort_at": "abort_after",
    "priority": "priority",
}
"""Field of the file to attribute of Request."""

_OWN = re.compile(r"r(0|[1-9]\d{0,17})", re.ASCII)
_NAMES = {attribute: field for field, attribute in FIELDS.items()}
_DEFAULTS = {field.name: field.default for field in fields(Request) if field.default is not MISSING}


def open_native(source: Source) -> Reader:
    """A native file. Remembers every id that the file gives and that is not its row's own, to refuse one that is given
    twice; of a file without names it remembers nothing."""
    path, names = source.path, _Names()

    def parse(number: int, raw: bytes) -> Request:
        row = parse_object(path, number, raw)
        check_fields(path, number, row, required=REQUIRED, known=FIELDS)
        values = {FIELDS[field]: _from_json(path, number, field, value) for field, value in row.items()}
        values.setdefault("request_id", f"r{number - 1}")
        request = build_request(path, number, _NAMES, values)
        if names.known(number, request.request_id):
            what = f"{request.request_id!r} was given before"
            raise TraceError(path, number, "id", what, "give each request its own", reason="id given twice")
        return request

    return Reader(raw_lines(path), parse, accept=lambda request: names.accept(request.request_id))


class _Names:
    """Names that were given, in the memory of those that are not ``r0``, ``r1`` and so on in the order of the rows."""

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.elsewhere: set[int] = set()
        """Rows whose own name is not theirs: called something else, or left out."""
        self.row = self.num_rows = 0

    def known(self, number: int, name: str) -> bool:
        """Whether a row above has ``name``; line ``number`` is the one asked about from now on."""
        self.elsewhere.update(range(self.num_rows, number - 1))  # in between nothing was kept
        self.row = self.num_rows = number - 1
        own = _OWN.fullmatch(name)
        return name in self.given or (own is not None and int(own[1]) < self.row and int(own[1]) not in self.elsewhere)

    def accept(self, name: str) -> None:
        """The row asked about is kept."""
        self.num_rows = self.row + 1
        if name != f"r{self.row}":
            self.given.add(name)
            self.elsewhere.add(self.row)


def write_native(path: str | Path, requests: Iterable[Request]) -> int:
    """Write ``requests``, one a line, and return how many; reading gives equal ones back.

    A name that ends in ``.gz`` or ``.zst`` is compressed. The file appears when all is written, or not at all.
    """
    count = 0
    with writing(path) as file:
        for line in native_lines(requests):
            file.write(line.encode())
            count += 1
    return count


def native_lines(requests: Iterable[Request]) -> Iterator[str]:
    """The line of each request, with its end."""
    return (json.dumps(_to_row(request)) + "\n" for request in requests)


def _from_json(path: str | Path, number: int, field: str, value: Any) -> Any:
    if value is None:
        raise TraceError(path, number, field, "is null", "leave the field out to get its default")
    if field == "timestamp":
        return as_ms(path, number, field, value, 1, "milliseconds")
    if field == "hash_ids":
        return as_tuple(value)
    if field == "fork_at":
        if type(value) is not list:
            cure = "give [[output position, parent, child]]"
            raise TraceError(path, number, field, f"{value!r} is not a list", cure, reason="bad branch")
        return tuple(map(as_tuple, value))
    return value


def _to_row(request: Request) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field, attribute in FIELDS.items():
        value = getattr(request, attribute)
        if attribute not in _DEFAULTS or value != _DEFAULTS[attribute]:
            row[field] = value
    if row["timestamp"].is_integer():
        row["timestamp"] = int(row["timestamp"])
    return row
