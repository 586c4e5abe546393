"""BurstGPT (Wang et al., KDD 2025), versions 1 to 3: CSV, read by the names of its columns.

Version 3 puts two columns in between. Times are seconds from the midnight before the first row. A response of zero
tokens is a call that failed.
"""

from __future__ import annotations

from kvproof_traces.lines import TraceError
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request
from kvproof_traces.table_rows import SinceFirst, Table

COLUMNS = ("Timestamp", "Request tokens", "Response tokens", "Total tokens")
HEADERS = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
)

_NAMES = {"arrival_ms": "Timestamp", "num_prompt_tokens": "Request tokens", "num_output_tokens": "Response tokens"}


def open_burstgpt(source: Source) -> Reader:
    """Any version.

    Raises:
        TraceError: a column is missing.
    """
    path = source.path
    table = Table(path, COLUMNS, f"give one of the headers: {' or '.join(HEADERS)}")
    clock = SinceFirst(path, "Timestamp")

    def parse(number: int, raw: bytes) -> Request:
        stamp, *cells = table.cells(number, raw)
        arrival_ms = clock(number, table.seconds_as_ms(number, "Timestamp", stamp))
        prompt, output = table.lengths_and_total(number, COLUMNS[1:], cells)
        if output == 0:
            what = "is 0: the call failed"
            raise TraceError(path, number, "Response tokens", what, "skip or remove the row", reason="failed call")
        values = {
            "request_id": f"r{number - 2}",
            "arrival_ms": arrival_ms,
            "num_prompt_tokens": prompt,
            "num_output_tokens": output,
        }
        request = build_request(path, number, _NAMES, values)
        clock.accept(arrival_ms)
        return request

    return Reader(table.rows, parse, "Timestamp")
