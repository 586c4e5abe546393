"""Mooncake traces (Qin et al., FAST 2025): JSON Lines of timestamp in ms, lengths, and hash ids of 512-token blocks.

The last id of a request names a partial block. Ids are numbered as they first appear and stand for whole prefixes.
"""

from __future__ import annotations

from typing import Any

from kvproof_traces.json_rows import as_tuple, check_fields, parse_object
from kvproof_traces.lines import TraceError, raw_lines
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
HASH_BLOCK_SIZE = 512
NAMES = {
    "arrival_ms": "timestamp",
    "num_prompt_tokens": "input_length",
    "num_output_tokens": "output_length",
    "hash_ids": "hash_ids",
}


def open_mooncake(source: Source) -> Reader:
    """A file of exactly these four fields, with ceil(input_length / 512) ids a row."""
    path = source.path

    def parse(number: int, raw: bytes) -> Request:
        row = parse_object(path, number, raw)
        check_fields(path, number, row, required=FIELDS, known=FIELDS)
        stamp, ids = row["timestamp"], row["hash_ids"]
        if type(stamp) is not int or abs(stamp) > 2**53:
            what = f"{stamp!r} is not a whole number"
            raise TraceError(path, number, "timestamp", what, "give milliseconds", reason="bad time")
        require_ids(source, number, ids)
        values: dict[str, Any] = {
            "request_id": f"r{number - 1}",
            "arrival_ms": float(stamp),
            "num_prompt_tokens": row["input_length"],
            "num_output_tokens": row["output_length"],
            "hash_ids": as_tuple(ids),
            "hash_block_size": HASH_BLOCK_SIZE,
        }
        return build_request(path, number, NAMES, values)

    return Reader(raw_lines(path), parse)


def require_ids(source: Source, number: int, ids: Any) -> None:
    """
    Raises:
        TraceError: an empty list, which to a request means that nothing is known, but to the format a prompt of 0.
    """
    if not ids:
        cure = "give an id for every block of the prompt"
        raise TraceError(source.path, number, "hash_ids", "is empty", cure, reason="too few hash ids")
