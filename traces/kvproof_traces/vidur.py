"""Lengths for simulators: CSV of Vidur (Agrawal et al., MLSys 2024) and Sarathi (Agrawal et al., OSDI 2024)."""

from __future__ import annotations

from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request
from kvproof_traces.table_rows import Table

VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
SARATHI = ("num_prefill_tokens", "num_decode_tokens", "num_total_tokens")

_NAMES = {
    "arrival_ms": "arrived_at",
    "num_prompt_tokens": "num_prefill_tokens",
    "num_output_tokens": "num_decode_tokens",
}


def open_vidur(source: Source) -> Reader:
    """Seconds and lengths; other columns are not looked at.

    Raises:
        TraceError: a column is missing.
    """
    path = source.path
    table = Table(path, VIDUR, f"a Vidur trace has the columns {', '.join(VIDUR)}")

    def parse(number: int, raw: bytes) -> Request:
        stamp, prompt, output = table.cells(number, raw)
        values = {
            "request_id": f"r{number - 2}",
            "arrival_ms": table.seconds_as_ms(number, "arrived_at", stamp),
            "num_prompt_tokens": table.count(number, "num_prefill_tokens", prompt),
            "num_output_tokens": table.count(number, "num_decode_tokens", output),
        }
        return build_request(path, number, _NAMES, values)

    return Reader(table.rows, parse, "arrived_at")


def open_sarathi(source: Source) -> Reader:
    """Lengths alone: every request arrives at 0.

    Raises:
        TraceError: a column is missing.
    """
    path = source.path
    table = Table(path, SARATHI, f"a Sarathi file has the columns {', '.join(SARATHI)}")
    source.note("the file has no arrival times: every request arrives at 0")

    def parse(number: int, raw: bytes) -> Request:
        prompt, output = table.lengths_and_total(number, SARATHI, table.cells(number, raw))
        values = {
            "request_id": f"r{number - 2}",
            "arrival_ms": 0.0,
            "num_prompt_tokens": prompt,
            "num_output_tokens": output,
        }
        return build_request(path, number, _NAMES, values)

    return Reader(table.rows, parse)
