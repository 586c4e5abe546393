"""Our own JSON Lines: Mooncake's fields, and what no other format carries: names, branches, aborts, priorities.

    {"timestamp": 0, "input_length": 40, "output_length": 9, "hash_ids": [0], "id": "r0", "n": 4,
     "fork_at": [[5, 1, 2]], "abort_at": 7, "priority": 1, "hash_block_size": 512}

Only the first three are required; a field at its default is not written. A Mooncake file is a native file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvproof_traces.json_rows import ArrivalOrder, PrefixChain, build_request, json_rows
from kvproof_traces.lines import TraceError
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

_NAMES = {attribute: field for field, attribute in FIELDS.items()}
_DEFAULTS = {
    "hash_ids": (),
    "hash_block_size": 512,
    "num_samples": 1,
    "forks": (),
    "abort_after": None,
    "priority": 0,
}


def read_native(path: str | Path) -> Iterator[Request]:
    """Yield the requests of a native file, each checked when reached; ``load`` takes a file whole or not at all.

    Raises:
        TraceError: an unknown, missing or doubled field, a bad value, an id given twice, time going backwards, or hash
            ids that do not name prefixes.
    """
    order, chain, seen = ArrivalOrder(path), PrefixChain(path), set[str]()
    for index, (number, row) in enumerate(json_rows(path, required=REQUIRED, known=FIELDS)):
        values = {FIELDS[field]: _from_json(path, number, field, value) for field, value in row.items()}
        values.setdefault("request_id", f"r{index}")
        request = build_request(path, number, _NAMES, values)
        if request.request_id in seen:
            raise TraceError(
                path, number, "id", f"{request.request_id!r} was given before", "give each request its own"
            )
        seen.add(request.request_id)
        order.check(number, request.arrival_ms)
        chain.check(number, request)
        yield request


def write_native(path: str | Path, requests: Iterable[Request]) -> int:
    """Write ``requests``, one a line, and return how many; ``read_native`` gives equal ones back."""
    count = 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for request in requests:
            file.write(json.dumps(_to_row(request)) + "\n")
            count += 1
    return count


def _from_json(path: str | Path, number: int, field: str, value: Any) -> Any:
    if value is None:
        raise TraceError(path, number, field, "is null", "leave the field out to get its default")
    if field == "timestamp" and type(value) is int:
        if abs(value) > 2**53:
            raise TraceError(path, number, field, f"{value} is not exact in floating point", "give milliseconds")
        return float(value)
    if field == "hash_ids" and type(value) is list:
        return tuple(value)
    if field == "fork_at":
        if type(value) is not list:
            raise TraceError(path, number, field, f"{value!r} is not a list", "give [[output position, parent, child]]")
        return tuple(tuple(fork) if type(fork) is list else fork for fork in value)
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
