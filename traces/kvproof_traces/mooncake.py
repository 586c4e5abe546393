"""Mooncake traces (Qin et al., FAST 2025): JSON Lines of timestamp in ms, lengths, and hash ids of 512-token blocks.

The last id of a request names a partial block. Ids are numbered as they first appear and stand for whole prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvproof_traces.json_rows import ArrivalOrder, PrefixChain, build_request, json_rows
from kvproof_traces.lines import TraceError
from kvproof_traces.request import Request

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
HASH_BLOCK_SIZE = 512

_NAMES = {
    "arrival_ms": "timestamp",
    "num_prompt_tokens": "input_length",
    "num_output_tokens": "output_length",
    "hash_ids": "hash_ids",
}


def read_mooncake(path: str | Path) -> Iterator[Request]:
    """Yield the requests of a Mooncake file, each checked when reached; ``load`` takes a file whole or not at all.

    Raises:
        TraceError: not these four fields, a bad number, time going backwards, a request without prompt or output, a
            number of hash ids that is not ceil(input_length / 512), or ids that do not name prefixes.
    """
    order, chain = ArrivalOrder(path), PrefixChain(path)
    for index, (number, row) in enumerate(json_rows(path, required=FIELDS, known=FIELDS)):
        stamp, ids = row["timestamp"], row["hash_ids"]
        if type(stamp) is not int:
            raise TraceError(path, number, "timestamp", f"{stamp!r} is not a whole number", "give milliseconds")
        if ids == []:
            raise TraceError(path, number, "hash_ids", "is empty", "give an id for every 512 tokens of the prompt")
        values = {
            "request_id": f"r{index}",
            "arrival_ms": float(stamp),
            "num_prompt_tokens": row["input_length"],
            "num_output_tokens": row["output_length"],
            "hash_ids": tuple(ids) if type(ids) is list else ids,
            "hash_block_size": HASH_BLOCK_SIZE,
        }
        request = build_request(path, number, _NAMES, values)
        order.check(number, request.arrival_ms)
        chain.check(number, request)
        yield request
