"""Alibaba's Qwen-Bailian traces (Wang et al., KVCache in the Wild, ATC 2025): JSON Lines, seconds, 16-token blocks.

The publishers describe ids as hashes of blocks, so that the same id may follow different ones: they are renumbered
here into ids of prefixes, which changes nothing where they are that already. A parent's output need not be a prefix of
its child (think tokens are left out, a last block's hash may change), so that nothing is asked of parents.
"""

from __future__ import annotations

from typing import Any

from kvproof_traces.json_rows import as_ms, as_tuple, check_fields, parse_object
from kvproof_traces.lines import TraceError, raw_lines
from kvproof_traces.mooncake import NAMES, require_ids
from kvproof_traces.prefix_ids import PrefixIds
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request

FIELDS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids")
REQUIRED = ("chat_id", "timestamp", "input_length", "output_length")
HASH_BLOCK_SIZE = 16


def open_bailian(source: Source) -> Reader:
    """A file of any of the four services."""
    path, prefixes, chats = source.path, PrefixIds(), set[str]()
    source.note("hash ids are renumbered, each to stand for its block and all before it")

    def parse(number: int, raw: bytes) -> Request:
        row = parse_object(path, number, raw)
        check_fields(path, number, row, required=REQUIRED, known=FIELDS)
        _check_chat(source, number, row, chats)
        if "hash_ids" in row:
            require_ids(source, number, row["hash_ids"])
        values: dict[str, Any] = {
            "request_id": f"chat{row['chat_id']}",
            "arrival_ms": as_ms(path, number, "timestamp", row["timestamp"], 0.001, "seconds"),
            "num_prompt_tokens": row["input_length"],
            "num_output_tokens": row["output_length"],
            "hash_ids": as_tuple(row.get("hash_ids", ())),
            "hash_block_size": HASH_BLOCK_SIZE,
        }
        build_request(path, number, NAMES, values)  # a row that is refused leaves no ids behind
        return build_request(path, number, NAMES, values | {"hash_ids": prefixes.of(values["hash_ids"])})

    return Reader(raw_lines(path), parse, accept=lambda request: chats.add(request.request_id))


def _check_chat(source: Source, number: int, row: dict[str, Any], chats: set[str]) -> None:
    for field in ("chat_id", "parent_chat_id", "turn"):
        if type(row.get(field, 0)) is not int:
            what = f"{row[field]!r} is not a whole number"
            raise TraceError(source.path, number, field, what, "give an integer", reason="bad number")
    if f"chat{row['chat_id']}" in chats:
        what = f"{row['chat_id']} was given before"
        raise TraceError(source.path, number, "chat_id", what, "give each request its own", reason="id given twice")
