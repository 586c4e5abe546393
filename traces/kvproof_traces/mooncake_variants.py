"""Files with Mooncake's field names that mean something else by them: aiperf's, Dynamo's and vLLM's timed_trace.

Dynamo and vLLM don't write the block size into the file, and vLLM's default of 16 tokens makes prompts of a Mooncake
file 32 times too short without a word: here it has to be given.
"""

from __future__ import annotations

from typing import Any

from kvproof_traces.json_rows import as_ms, as_tuple, check_fields, parse_object
from kvproof_traces.lines import TraceError, raw_lines
from kvproof_traces.mooncake import FIELDS, HASH_BLOCK_SIZE, NAMES, require_ids
from kvproof_traces.reading import ArrivalOrder, Reader, Source, build_request
from kvproof_traces.request import Request
from kvproof_traces.text_lengths import TextLengths

AIPERF_FIELDS = (*FIELDS, "text_input", "delay", "session_id")


def open_dynamo(source: Source) -> Reader:
    """Milliseconds, and exactly as many ids as the prompt has blocks.

    Raises:
        TraceError: ``hash_block_size`` is not given.
    """
    return _open_chunked(source, per_ms=1, unit="milliseconds", spare_ids=False)


def open_timed_trace(source: Source) -> Reader:
    """Seconds; ids past the end of the prompt are left out, too few are refused.

    Raises:
        TraceError: ``hash_block_size`` is not given.
    """
    return _open_chunked(source, per_ms=0.001, unit="seconds", spare_ids=True)


def _open_chunked(source: Source, per_ms: float, unit: str, spare_ids: bool) -> Reader:
    path = source.path
    size = source.need("hash_block_size", "is not in the file, whose ids do not name blocks of 512 tokens")

    def parse(number: int, raw: bytes) -> Request:
        row = parse_object(path, number, raw)
        check_fields(path, number, row, required=FIELDS, known=FIELDS)
        require_ids(source, number, row["hash_ids"])
        ids = as_tuple(row["hash_ids"])
        if spare_ids and type(ids) is tuple and type(row["input_length"]) is int:
            num_blocks = -(-row["input_length"] // size)
            if len(ids) > num_blocks:
                source.note("hash ids past the end of a prompt are left out")
                ids = ids[:num_blocks]
        values: dict[str, Any] = {
            "request_id": f"r{number - 1}",
            "arrival_ms": as_ms(path, number, "timestamp", row["timestamp"], per_ms, unit),
            "num_prompt_tokens": row["input_length"],
            "num_output_tokens": row["output_length"],
            "hash_ids": ids,
            "hash_block_size": size,
        }
        return build_request(path, number, NAMES, values)

    return Reader(raw_lines(path), parse)


def open_aiperf(source: Source) -> Reader:
    """aiperf's mooncake_trace: every field but the prompt is optional, and later turns of a session have a delay."""
    path = source.path
    turns, lengths = _Turns(source), TextLengths(source)

    def parse(number: int, raw: bytes) -> Request:
        row = parse_object(path, number, raw)
        check_fields(path, number, row, required=(), known=AIPERF_FIELDS)
        num_prompt_tokens = _prompt_length(number, row, lengths)
        arrival_ms = turns.arrival_ms(number, row)
        values: dict[str, Any] = {
            "request_id": f"r{number - 1}",
            "arrival_ms": arrival_ms,
            "num_prompt_tokens": num_prompt_tokens,
            "num_output_tokens": lengths.output(number, row, "output_length"),
            "hash_ids": as_tuple(row.get("hash_ids", ())),
            "hash_block_size": source.options.hash_block_size or HASH_BLOCK_SIZE,
        }
        return build_request(path, number, NAMES, values)

    return Reader(raw_lines(path), parse, accept=turns.accept, horizon=turns.horizon)


def _prompt_length(number: int, row: dict[str, Any], lengths: TextLengths) -> Any:
    if ("input_length" in row) == ("text_input" in row):
        what = "and text_input are both given" if "text_input" in row else "and text_input are missing"
        raise TraceError(lengths.source.path, number, "input_length", what, "give one of them")
    return lengths.of(number, "text_input", row["text_input"]) if "text_input" in row else row["input_length"]


class _Turns:
    """When turns arrive: as the row says, else ``delay`` ms after the session's turn before, else at 0."""

    def __init__(self, source: Source) -> None:
        self.source, self.order = source, ArrivalOrder(source.path)
        self.sessions: dict[Any, float] = {}
        self.has_times = False
        self.row: dict[str, Any] = {}
        self.earliest = float("inf")

    def arrival_ms(self, number: int, row: dict[str, Any]) -> float:
        path, session, self.row = self.source.path, row.get("session_id"), row
        if type(session) not in (str, int, type(None)):
            raise TraceError(path, number, "session_id", f"{session!r} is not a name", "give a string")
        if "timestamp" in row:
            stamp = as_ms(path, number, "timestamp", row["timestamp"], 1, "milliseconds")
            self.order.check(number, stamp)
            return stamp
        if session in self.sessions:
            delay = as_ms(path, number, "delay", row.get("delay", 0), 1, "milliseconds")
            if delay < 0:
                raise TraceError(path, number, "delay", f"{delay:g} is below 0", "give milliseconds", reason="bad time")
            return self.sessions[session] + delay
        if self.has_times:
            raise TraceError(path, number, "timestamp", "is missing, and rows above have one", "give each row its own")
        return 0.0

    def accept(self, request: Request) -> None:
        """The row asked about last is kept."""
        session, arrival_ms = self.row.get("session_id"), request.arrival_ms
        if "timestamp" in self.row:
            self.has_times = True
            self.order.accept(arrival_ms)
        elif session in self.sessions:
            self.source.note(
                "later turns of a session arrive as early as they can, their delay after the turn before: how long "
                "that took is not in the file"
            )
        else:
            self.source.note("rows without a timestamp arrive at 0")
        if session is not None:
            self.sessions[session] = arrival_ms
            self.earliest = min(self.earliest, arrival_ms)

    def horizon(self) -> float:
        """Once there is a session its next turn may come any time after its first, wherever it stands in the file."""
        return min(self.order.last, self.earliest)
