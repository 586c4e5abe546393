"""Finds the format of a trace from its content: the columns of a table, or the fields of the first JSON rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kvproof_traces import azure, bailian, burstgpt, distserve, llmservingsim, mooncake, native, sharegpt, vidur
from kvproof_traces.compressed import Truncated, open_bytes
from kvproof_traces.flashinfer_trace import FIELDS as FLASHINFER_FIELDS
from kvproof_traces.formats import FORMATS
from kvproof_traces.json_array import array_elements
from kvproof_traces.json_rows import Row, parse_object
from kvproof_traces.lines import BYTE_ORDER_MARK, TraceError, line_text, raw_lines
from kvproof_traces.mooncake_variants import AIPERF_FIELDS

NUM_ROWS = 64
"""JSON rows looked at: an optional field need not be in the first of them."""
NUM_BYTES = 1 << 22
"""Of those rows together, the last one not counted: they are in memory at the same time."""

TABLES = {azure.HEADER: "azure", azure.MULTIMODAL_HEADER: "azure-multimodal"}
COLUMNS = {"burstgpt": burstgpt.COLUMNS, "vidur": vidur.VIDUR, "sarathi": vidur.SARATHI}
"""Formats known by columns, wherever they stand, and whatever stands beside them."""

FIELDS = {
    "native": (native.REQUIRED, native.FIELDS),
    "bailian": (bailian.REQUIRED, bailian.FIELDS),
    "flashinfer-trace": (("definition", "workload"), FLASHINFER_FIELDS),
    "vllm-custom": (("prompt",), sharegpt.CUSTOM_FIELDS),
    "llmservingsim": (("arrival_time_ns",), {*llmservingsim.SINGLE, *llmservingsim.SESSION}),
    "aiperf": ((), AIPERF_FIELDS),
}
"""Formats known by JSON fields: what every row has, and what any may have. The first that fits is the one."""


def detect(path: str | Path) -> str:
    """The name of the format, a key of ``FORMATS``. The order of JSON fields, and the name of the file, say nothing.

    Raises:
        TraceError: none of the known ones, which are listed.
        OSError: no such file.
    """
    try:
        with open_bytes(path) as file:
            start = file.read(64).removeprefix(BYTE_ORDER_MARK).lstrip()[:1]
    except Truncated as error:
        raise TraceError(path, 1, "file", str(error), "get the whole file again") from None
    if start == b"[":  # not to be read by lines: it may be one
        return _json_list(path)
    first = list(_first_lines(path))
    if start == b"{":
        return _json_lines(path, first)
    header = line_text(path, *first[0]) if first else ""
    by_columns = (name for name, columns in COLUMNS.items() if set(columns) <= set(header.split(",")))
    name = TABLES.get(header) or next(by_columns, None)
    if name is None:
        raise _unknown(path, "header", f"starts with {header[:60]!r}" if header else "is missing")
    return name


def _first_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    num_bytes = 0
    for number, raw in islice(raw_lines(path), NUM_ROWS):
        yield number, raw
        num_bytes += len(raw)
        if num_bytes > NUM_BYTES:
            return


def _json_list(path: str | Path) -> str:
    _, element = next(array_elements(path), (1, None))
    fields = set(element) if type(element) is dict else set()
    if "conversations" in fields:
        return "sharegpt"
    if fields >= set(distserve.REQUIRED):
        return "distserve"
    raise _unknown(path, "[0]", f"has the fields {', '.join(sorted(fields)) or 'of no request'}")


def _json_lines(path: str | Path, first: list[tuple[int, bytes]]) -> str:
    rows = [parse_object(path, *first[0]), *_readable(path, first[1:])]
    fields = {field for row in rows for field in row}
    if fields == set(mooncake.FIELDS):
        return _chunked(rows)
    for name, (required, known) in FIELDS.items():
        if fields <= set(known) and all(set(required) <= set(row) for row in rows):
            return name
    known_best = max(FIELDS.values(), key=lambda fit: len(fields & set(fit[1])))[1]
    foreign = [field for row in rows for field in row if field not in known_best]
    raise _unknown(path, ", ".join(dict.fromkeys(foreign)) or "line", "no known format has these fields together")


def _chunked(rows: list[Row]) -> str:
    """Mooncake's fields: its blocks are 512 tokens, and its times whole milliseconds."""
    pairs = [(row.get("input_length"), row.get("hash_ids")) for row in rows]
    sized = [(length, len(ids)) for length, ids in pairs if type(length) is int and type(ids) is list and ids]
    num_fitting = sum(count == -(-length // mooncake.HASH_BLOCK_SIZE) for length, count in sized)
    if any(type(row.get("timestamp")) is float for row in rows):
        return "timed_trace"
    return "mooncake" if 2 * num_fitting >= len(sized) else "dynamo"


def _readable(path: str | Path, lines: list[tuple[int, bytes]]) -> list[Row]:
    """The rows that are objects; what is wrong with the others is for their reader to say."""
    rows = []
    for number, raw in lines:
        try:
            rows.append(parse_object(path, number, raw))
        except TraceError:
            continue
    return rows


def _unknown(path: str | Path, field: str, what: str) -> TraceError:
    known = ", ".join(FORMATS)
    return TraceError(path, 1, field, f"{what}: unknown trace format", f"known are {known}; --format names one")
