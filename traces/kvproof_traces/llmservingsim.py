"""LLMServingSim (Cho et al., IISWC 2024): JSON Lines in ns, of single requests and of sessions, both in one file.

A session's requests follow each other: the next may start ``tool_duration_ns`` after the one before has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvproof_traces.json_rows import as_ms, check_fields, parse_object
from kvproof_traces.lines import TraceError, raw_lines
from kvproof_traces.prefix_ids import PrefixIds, token_blocks
from kvproof_traces.reading import ArrivalOrder, Reader, Source, build_request
from kvproof_traces.request import Request

NS_PER_MS = 1e-6
CLUSTER = (
    *("failover_mode", "target_instance_id", "failed_instance_id", "reuse_prefix_toks"),
    *("kv_migration_bandwidth_gbps", "kv_migration_distance_m"),
)
"""What later versions add to a request, about where it runs and not about what it is."""
SINGLE = ("input_toks", "output_toks", "arrival_time_ns", "input_tok_ids", "output_tok_ids", *CLUSTER)
SESSION = ("session_id", "arrival_time_ns", "sub_requests")
SUB = ("input_toks", "output_toks", "tool_duration_ns", "input_tok_ids", "output_tok_ids")
Part = tuple[str, dict[str, Any], float, float]
"""(request id, the request's own object, ms at which its session starts, and at which it can arrive itself)"""

_NAMES = {"num_prompt_tokens": "input_toks", "num_output_tokens": "output_toks", "arrival_ms": "arrival_time_ns"}


def open_llmservingsim(source: Source) -> Reader:
    """Every request of a session counts as a row."""
    parts = _Parts(source)
    return Reader(parts.rows(), parts.parse, "arrival_time_ns", horizon=parts.horizon)


class _Parts:
    """The requests of each line. A line that can't be taken apart is one row, and refused."""

    def __init__(self, source: Source) -> None:
        self.source, self.path = source, source.path
        self.order = ArrivalOrder(self.path, "arrival_time_ns")
        self.prefixes = PrefixIds()

    def horizon(self) -> float:
        return self.order.last

    def rows(self) -> Iterator[tuple[int, Part | TraceError]]:
        for number, raw in raw_lines(self.path):
            try:
                parts = self._take_apart(number, raw)
            except TraceError as error:
                yield number, error
                continue
            for part in parts:
                yield number, part

    def _take_apart(self, number: int, raw: bytes) -> list[Part]:
        row = parse_object(self.path, number, raw)
        if left_out := sorted(set(row) & set(CLUSTER)):
            self.source.note(f"left out, as settings of the simulated cluster: {', '.join(left_out)}")
        is_session = "sub_requests" in row
        known = SESSION if is_session else SINGLE
        check_fields(self.path, number, row, required=("arrival_time_ns",), known=known)
        start = as_ms(self.path, number, "arrival_time_ns", row["arrival_time_ns"], 1 / NS_PER_MS, "nanoseconds")
        subs = row["sub_requests"] if is_session else [row]
        if type(subs) is not list or not subs or not all(type(sub) is dict for sub in subs):
            what = "is no list of requests"
            raise TraceError(self.path, number, "sub_requests", what, "give a list of objects with at least one")
        names = [f"r{number - 1}.{place}" if is_session else f"r{number - 1}" for place in range(len(subs))]
        parts, now = [], start
        for name, sub in zip(names, subs, strict=True):
            check_fields(
                self.path, number, sub, required=("input_toks", "output_toks"), known=SUB if is_session else SINGLE
            )
            parts.append((name, sub, start, now))
            now += as_ms(self.path, number, "tool_duration_ns", sub.get("tool_duration_ns", 0), 1 / NS_PER_MS, "ns")
        self.order.check(number, start)
        return parts

    def parse(self, number: int, part: Part | TraceError) -> Request:
        if isinstance(part, TraceError):
            raise part
        name, row, start, arrival_ms = part
        if "." in name:
            self.source.note(
                "requests of a session arrive as early as they can, the tool's time after the one before: how long "
                "that took is not in the file"
            )
        values = {
            "request_id": name,
            "arrival_ms": arrival_ms,
            "num_prompt_tokens": row["input_toks"],
            "num_output_tokens": row["output_toks"],
        }
        request = build_request(self.path, number, _NAMES, values)
        request = build_request(self.path, number, _NAMES, values | self._ids(number, request, row))
        self.order.accept(start)
        return request

    def _ids(self, number: int, request: Request, row: dict[str, Any]) -> dict[str, Any]:
        """Prefix ids from token ids, where both the tokens and a block size are given."""
        tokens, size = row.get("input_tok_ids"), self.source.options.hash_block_size
        if tokens is None:
            return {}
        if type(tokens) is not list or len(tokens) != request.num_prompt_tokens:
            there = f"{len(tokens)} ids" if type(tokens) is list else f"{tokens!r}"
            what = f"{there}, but input_toks is {request.num_prompt_tokens}"
            cure = "mend the row: the simulator itself does not look"
            raise TraceError(self.path, number, "input_tok_ids", what, cure, reason="token ids differ")
        if set(map(type, tokens)) != {int}:
            what = "holds something that is no token id"
            raise TraceError(self.path, number, "input_tok_ids", what, "give whole numbers", reason="bad number")
        if size is None:
            self.source.note("token ids are not looked at: a hash block size would show the prefixes that they share")
            return {}
        return {"hash_ids": self.prefixes.of(token_blocks(tokens, size)), "hash_block_size": size}
