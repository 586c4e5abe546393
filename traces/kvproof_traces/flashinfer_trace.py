"""FlashInfer-Bench workloads: JSON Lines of single kernel calls, each a batch at one moment.

A sequence of the batch becomes a request: its context the prompt, and one token of output. Page size and heads stand in
the definition's name (``..._ps64``); lengths lie in a safetensors file beside, as the row pointers of the page table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvproof_traces.json_rows import parse_object
from kvproof_traces.lines import TraceError, raw_lines
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request
from kvproof_traces.safetensors import read_integers

FIELDS = ("definition", "solution", "evaluation", "workload")

_PAGE_SIZE = re.compile(r"_ps(\d{1,6})(?:_|$)")
_NAMES = {"num_prompt_tokens": "kv_indptr"}


def open_flashinfer_trace(source: Source) -> Reader:
    """Every sequence of a batch counts as a row."""
    source.note("no arrival times: every sequence of every batch arrives at 0, its context the prompt, with 1 output")
    return Reader(_rows(source), lambda number, row: _parse(source, number, row))


def _rows(source: Source) -> Iterator[tuple[int, tuple[str, int] | TraceError]]:
    for number, raw in raw_lines(source.path):
        try:
            lengths = _context_lens(source, number, raw)
        except TraceError as error:
            yield number, error
            continue
        for place, length in enumerate(lengths):
            yield number, (f"r{number - 1}.{place}", length)


def _parse(source: Source, number: int, row: tuple[str, int] | TraceError) -> Request:
    if isinstance(row, TraceError):
        raise row
    name, length = row
    values = {"request_id": name, "arrival_ms": 0.0, "num_prompt_tokens": length, "num_output_tokens": 1}
    return build_request(source.path, number, _NAMES, values)


def _context_lens(source: Source, number: int, raw: bytes) -> list[int]:
    row = parse_object(source.path, number, raw)
    definition, workload = row.get("definition"), row.get("workload")
    page = _PAGE_SIZE.search(definition) if type(definition) is str else None
    if page is None:
        cure = "only paged attention has lengths: give a definition that ends in _ps and the page size"
        raise TraceError(source.path, number, "definition", f"{definition!r} names no page size", cure)
    inputs = workload.get("inputs") if type(workload) is dict else None
    if type(inputs) is not dict or "kv_indptr" not in inputs:
        raise TraceError(source.path, number, "inputs", "has no kv_indptr", "lengths are its differences")
    pages = [after - before for before, after in pairwise(_tensor(source, number, inputs, "kv_indptr"))]
    size = int(page[1])
    if "kv_last_page_len" in inputs:
        last = _tensor(source, number, inputs, "kv_last_page_len")
        if len(last) != len(pages):
            what = f"has {len(last)} entries for {len(pages)} sequences"
            raise TraceError(source.path, number, "inputs.kv_last_page_len", what, "get the files again")
        return [(count - 1) * size + rest if count else 0 for count, rest in zip(pages, last, strict=True)]
    if size > 1:
        source.note("contexts are rounded up to whole pages: the workload does not say how full the last one is")
    return [count * size for count in pages]


def _tensor(source: Source, number: int, inputs: dict[str, Any], name: str) -> tuple[int, ...]:
    """
    Raises:
        TraceError: the lengths can't be had: another kind of input, a file that is not there or can't be read.
    """
    given = inputs[name]
    field = f"inputs.{name}"
    if type(given) is not dict or given.get("type") != "safetensors" or type(given.get("path")) is not str:
        what = "is not in a safetensors file, so that there are no lengths"
        raise TraceError(source.path, number, field, what, "skip the row")
    found = _beside(source.path, given["path"])
    if found is None:
        what = f"lengths lie in {given['path']}, which is not beside the file or above it"
        raise TraceError(source.path, number, field, what, "get that file as well: the JSON alone has no lengths")
    try:
        return read_integers(found, str(given.get("tensor_key", name)))
    except (ValueError, OSError) as error:
        raise TraceError(source.path, number, field, str(error), "get the file again") from None


def _beside(path: Path, name: str) -> Path | None:
    """The data set's root is some folder above the workload; nothing outside of those is looked at."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    return next((folder / name for folder in path.resolve().parents if (folder / name).is_file()), None)
