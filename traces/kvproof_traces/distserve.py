"""DistServe's lists of requests (Zhong et al., OSDI 2024): JSON objects with prompt_len, output_len and start_time."""

from __future__ import annotations

from typing import Any

from kvproof_traces.json_array import array_elements
from kvproof_traces.json_rows import as_ms
from kvproof_traces.lines import TraceError
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request
from kvproof_traces.table_rows import SinceFirst

REQUIRED = ("prompt_len", "output_len", "start_time")


def open_distserve(source: Source) -> Reader:
    """Seconds, counted from the first request. What a run added (end times, events) is left out."""
    path, clock = source.path, SinceFirst(source.path, "start_time")
    rows = ((line, (index, item)) for index, (line, item) in enumerate(array_elements(path)))

    def parse(number: int, row: tuple[int, Any]) -> Request:
        index, item = row
        _check_item(source, number, index, item)
        if left_out := sorted(set(item) - set(REQUIRED)):
            source.note(f"left out, as results of a run: {', '.join(left_out)}")
        name = f"[{index}].start_time"
        arrival_ms = clock(number, as_ms(path, number, name, item["start_time"], 0.001, "seconds"))
        values = {
            "request_id": f"r{index}",
            "arrival_ms": arrival_ms,
            "num_prompt_tokens": item["prompt_len"],
            "num_output_tokens": item["output_len"],
        }
        names = {"num_prompt_tokens": f"[{index}].prompt_len", "num_output_tokens": f"[{index}].output_len"}
        request = build_request(path, number, names, values)
        clock.accept(arrival_ms)
        return request

    return Reader(rows, parse, "start_time")


def _check_item(source: Source, number: int, index: int, item: Any) -> None:
    if type(item) is not dict:
        what = f"is a JSON {type(item).__name__}"
        raise TraceError(source.path, number, f"[{index}]", what, "give an object for each request")
    for field in REQUIRED:
        if field not in item:
            cure = f"a request needs {', '.join(REQUIRED)}"
            raise TraceError(source.path, number, f"[{index}].{field}", "is missing", cure)
